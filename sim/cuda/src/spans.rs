//! Free stretches of addresses.

use std::collections::BTreeMap;

/// Free stretches, none touching another.
#[derive(Debug, Default)]
pub(crate) struct Spans(BTreeMap<u64, u64>);

impl Spans {
    /// Takes `bytes` at a multiple of `align` from the first stretch that has them.
    pub(crate) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let (start, end, at) = self.0.iter().find_map(|(start, end)| {
            let at = start.next_multiple_of(align);
            (at < *end && *end - at >= bytes).then_some((*start, *end, at))
        })?;
        self.0.remove(&start);
        if start < at {
            self.0.insert(start, at);
        }
        if at + bytes < end {
            self.0.insert(at + bytes, end);
        }
        Some(at)
    }

    /// Gives a stretch back; it grows together with its neighbours, but never across `wall`s.
    pub(crate) fn give(&mut self, start: u64, end: u64, is_wall: impl Fn(u64) -> bool) {
        let (mut first, mut last) = (start, end);
        if !is_wall(start)
            && let Some((before, until)) = self.0.range(..start).next_back()
            && *until == start
        {
            first = *before;
        }
        if !is_wall(end)
            && let Some(until) = self.0.remove(&end)
        {
            last = until;
        }
        self.0.insert(first, last);
    }

    /// Takes the stretch from `start` to `end` if it is free as one.
    pub(crate) fn take_whole(&mut self, start: u64, end: u64) -> bool {
        let is_free = self.0.get(&start) == Some(&end);
        if is_free {
            self.0.remove(&start);
        }
        is_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_grow_together_but_not_across_a_wall() {
        let mut spans = Spans::default();
        spans.give(0, 100, |_| false);
        let first = spans.take(40, 10).unwrap();
        let second = spans.take(60, 10).unwrap();
        assert_eq!((first, second), (0, 40));
        spans.give(0, 40, |_| false);
        spans.give(40, 100, |at| at == 40);
        assert!(!spans.take_whole(0, 100));
        assert!(spans.take_whole(0, 40) && spans.take_whole(40, 100));
        assert_eq!(spans.take(1, 1), None);
    }
}
