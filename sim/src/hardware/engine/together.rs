//! Contexts side by side, as under a multi-process server: no turns and no changes, one device's warps.
//!
//! Kernels of all contexts start in order of priority, then of arrival, as long as their warps fit.

use super::{Active, ContextId, Device, Effect, Engine, Ready, Work};
use crate::hardware::ClientId;

impl Engine {
    /// When the first of a device's running kernels ends.
    pub(super) fn next_end_together(&self, device: &Device) -> Option<u64> {
        let contexts = device.run_list.iter();
        contexts
            .filter_map(|context| self.contexts.get(context))
            .flat_map(|context| &context.active)
            .map(|active| self.now.saturating_add(active.remaining_ns))
            .min()
    }

    /// Accounts for `elapsed` nanoseconds: the device is busy once, and so is each client that runs.
    pub(super) fn run_together(&mut self, index: usize, elapsed: u64) {
        let device = &mut self.devices[index];
        let mut clients: Vec<ClientId> = Vec::new();
        for listed in &device.run_list {
            let Some(context) = self.contexts.get_mut(listed) else {
                continue;
            };
            for active in &mut context.active {
                active.remaining_ns -= elapsed;
            }
            if !context.active.is_empty() && !clients.contains(&context.client) {
                clients.push(context.client);
            }
        }
        if !clients.is_empty() {
            device.time.busy_ns += elapsed;
        }
        for client in clients {
            *self.busy.entry((client, index)).or_insert(0) += elapsed;
        }
    }

    /// Starts what is ready in any context of a device, as long as it fits.
    pub(super) fn start_together(&mut self, index: usize) {
        let device = &self.devices[index];
        let capacity = device.capacity_warps;
        let listed: Vec<ContextId> = device.run_list.iter().copied().collect();
        let mut taken = 0;
        let mut waiting: Vec<(i32, u64, ContextId)> = Vec::new();
        for id in listed {
            let Some(context) = self.contexts.get(&id) else {
                continue;
            };
            taken += context.active.iter().map(|it| it.warps).sum::<u64>();
            let ready = context.ready.iter();
            waiting.extend(ready.map(|ready| (ready.priority, ready.arrival, id)));
        }
        waiting.sort_unstable();
        for (_, arrival, id) in waiting {
            let Some(context) = self.contexts.get_mut(&id) else {
                continue;
            };
            let at = context
                .ready
                .iter()
                .position(|ready| ready.arrival == arrival);
            let Some(at) = at else { continue };
            taken += context.ready[at].warps;
            if taken > capacity {
                return;
            }
            let ready = context.ready.remove(at);
            self.start(id, ready);
        }
    }

    /// A kernel begins to run in its context.
    pub(super) fn start(&mut self, context: ContextId, ready: Ready) {
        let head = self.streams.get(&ready.stream);
        let head = head.and_then(|stream| stream.queue.front());
        if let Some(head) = head
            && matches!(head.work, Work::Spin { .. })
        {
            // From here on it sees the memory that it spins on.
            self.effects.push(Effect::HostReady {
                stream: ready.stream,
                sequence: head.sequence,
            });
        }
        if let Some(context) = self.contexts.get_mut(&context) {
            context.active.push(Active {
                stream: ready.stream,
                remaining_ns: ready.remaining_ns,
                warps: ready.warps,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Schedule, StreamId};
    use super::*;

    const FULL: u64 = 100;

    fn engine() -> Engine {
        let schedule = Schedule {
            slice_ns: 2_000_000,
            switch_ns: 100_000,
            is_shared: true,
        };
        let mut engine = Engine::new(schedule, &[FULL], 0);
        for client in 1..=3 {
            let context = ContextId(u64::from(client));
            engine.open_context(ClientId(client), context, 0);
            for slot in 0..2 {
                engine.open_stream(stream(client, slot), context, 0, 0);
            }
        }
        engine
    }

    fn stream(client: u32, slot: u32) -> StreamId {
        StreamId {
            client: ClientId(client),
            slot,
        }
    }

    fn kernel(duration_ns: u64, warps: u64) -> Work {
        Work::Kernel { duration_ns, warps }
    }

    fn ends(engine: &mut Engine) -> Vec<(u32, u64)> {
        let effects = engine.take_effects();
        let ends = effects.iter().filter_map(|effect| match effect {
            Effect::Done { stream, at_ns, .. } => Some((stream.client.0, *at_ns)),
            _ => None,
        });
        ends.collect()
    }

    #[test]
    fn small_kernels_of_several_clients_run_at_once() {
        let mut engine = engine();
        engine.submit(stream(1, 0), 1, kernel(9_000_000, 50));
        engine.submit(stream(2, 0), 1, kernel(5_000_000, 50));
        engine.advance(1_000_000);
        assert!(engine.is_running(ClientId(1), 0) && engine.is_running(ClientId(2), 0));
        engine.advance(20_000_000);
        assert_eq!(ends(&mut engine), [(2, 5_000_000), (1, 9_000_000)]);
        let time = engine.device_time(0);
        assert_eq!((time.busy_ns, time.switch_ns), (9_000_000, 0));
        assert_eq!(engine.client_busy_ns(ClientId(1), 0), 9_000_000);
        assert_eq!(engine.client_busy_ns(ClientId(2), 0), 5_000_000);
        assert_eq!(engine.client_busy_ns(ClientId(3), 0), 0);
    }

    #[test]
    fn what_does_not_fit_waits_for_its_turn_and_is_not_overtaken() {
        let mut engine = engine();
        engine.submit(stream(1, 0), 1, kernel(4_000, 60));
        engine.submit(stream(2, 0), 1, kernel(1_000, 60));
        engine.submit(stream(3, 0), 1, kernel(1_000, 40));
        engine.advance(20_000);
        // The third would fit beside the first, but the second was there before.
        assert_eq!(ends(&mut engine), [(1, 4_000), (2, 5_000), (3, 5_000)]);
    }

    #[test]
    fn clients_with_full_kernels_take_turns_kernel_by_kernel() {
        let mut engine = engine();
        for sequence in 1..=2 {
            engine.submit(stream(1, 0), sequence, kernel(10_000_000, FULL));
            engine.submit(stream(2, 0), sequence, kernel(1_000, FULL));
        }
        engine.advance(100_000_000);
        let order: Vec<u32> = ends(&mut engine).iter().map(|end| end.0).collect();
        assert_eq!(order, [1, 2, 1, 2]);
        assert_eq!(engine.device_time(0).busy_ns, 20_002_000);
    }

    #[test]
    fn a_client_that_goes_away_makes_room() {
        let mut engine = engine();
        engine.submit(stream(1, 0), 1, Work::Spin { warps: FULL });
        engine.submit(stream(2, 0), 1, kernel(1_000, FULL));
        engine.advance(5_000);
        engine.close_client(ClientId(1));
        engine.advance(10_000);
        assert_eq!(ends(&mut engine), [(2, 6_000)]);
    }
}
