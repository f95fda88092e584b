//! Steps that make other threads and processes.

use crate::answer::Answer;
use crate::steps::{Stepper, number};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest that a forked child may live in a storm.
const CHILD_MAY_LIVE: Duration = Duration::from_secs(5);

/// A stepper that this one started. It ends when its parent does.
#[derive(Debug)]
pub(crate) struct Child {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Does one step of this family.
pub(crate) fn step(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    match words {
        ["thread", rest @ ..] => std::thread::scope(|scope| {
            let thread = scope.spawn(|| stepper.step(rest));
            thread.join().map_err(|_| "the thread panicked".to_owned())
        }),
        ["fork", rest @ ..] => fork(stepper, rest),
        ["fork-storm", count, how] => storm(number(count)?, how),
        ["child", name] => child(stepper, name),
        ["tell", name, rest @ ..] => {
            let child = stepper.children.get_mut(*name).ok_or("no such child")?;
            let line = format!("{}\n", rest.join(" "));
            let mut answer = String::new();
            child
                .input
                .write_all(line.as_bytes())
                .and_then(|()| child.output.read_line(&mut answer))
                .map_err(|error| error.to_string())?;
            Ok(Answer::default().object("child", answer.trim()))
        }
        _ => Err("no such step".into()),
    }
}

/// Forks; the child ends in the way that `words` names, or does the step and reports it.
fn fork(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    let (mut reader, mut writer) = std::io::pipe().map_err(|error| error.to_string())?;
    // SAFETY: the child does steps only, as programs that fork do; where that is not allowed, the
    // driver says so.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        match words {
            ["exit"] => std::process::exit(0),
            ["_exit"] => (),
            ["crash"] => std::process::abort(),
            _ => _ = writer.write_all(stepper.step(words).json().as_bytes()),
        }
        // SAFETY: ends the child without running anything of its parent's.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    let mut report = String::new();
    reader
        .read_to_string(&mut report)
        .map_err(|error| error.to_string())?;
    let status = wait(pid, Instant::now() + CHILD_MAY_LIVE);
    let answer = Answer::default().number("status", status.unwrap_or(-1));
    Ok(if report.is_empty() {
        answer
    } else {
        answer.object("child", &report)
    })
}

/// Makes `count` children, one after the other, while other threads may be in the driver.
fn storm(count: u64, how: &str) -> Result<Answer, String> {
    let (mut slowest, mut stuck, mut failed) = (Duration::ZERO, 0u32, 0u32);
    for _ in 0..count {
        let begin = Instant::now();
        let pid = match how {
            "exec" => fork_and_exec(),
            "spawn" => spawn(),
            other => return Err(format!("unknown way to make a child: {other}")),
        };
        match wait(pid, begin + CHILD_MAY_LIVE) {
            Some(0) => (),
            Some(_) => failed += 1,
            None => {
                stuck += 1;
                // SAFETY: our own child, not waited for yet.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                wait(pid, Instant::now() + CHILD_MAY_LIVE);
            }
        }
        slowest = slowest.max(begin.elapsed());
    }
    Ok(Answer::default()
        .number("rc", 0)
        .number("stuck", stuck)
        .number("failed", failed)
        .number("slowest_ms", slowest.as_millis() as i128))
}

fn fork_and_exec() -> libc::pid_t {
    let argv = [c"/bin/true".as_ptr(), std::ptr::null()];
    // SAFETY: the child calls what a C program commonly calls between fork and exec.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: glibc keeps its allocator usable in a forked child.
        let room = unsafe { libc::malloc(4096) };
        // SAFETY: what was allocated above.
        unsafe { libc::free(room) };
        // SAFETY: a pseudo handle and a NUL-terminated name.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"cuInit".as_ptr()) };
        // SAFETY: NUL-terminated strings, and a list that ends in null.
        unsafe { libc::execv(argv[0], argv.as_ptr()) };
        // SAFETY: only reached where exec failed.
        unsafe { libc::_exit(127) };
    }
    pid
}

fn spawn() -> libc::pid_t {
    let argv = [c"/bin/true".as_ptr().cast_mut(), std::ptr::null_mut()];
    let mut pid = 0;
    // SAFETY: NUL-terminated strings, lists that end in null, and no attributes.
    let code = unsafe {
        libc::posix_spawn(
            &mut pid,
            argv[0],
            std::ptr::null(),
            std::ptr::null(),
            argv.as_ptr(),
            [std::ptr::null_mut()].as_ptr(),
        )
    };
    if code == 0 { pid } else { -1 }
}

/// The raw status of child `pid`, or `None` where it still runs at `deadline`.
fn wait(pid: libc::pid_t, deadline: Instant) -> Option<i32> {
    loop {
        let mut status = 0;
        // SAFETY: our own child; `status` is writable.
        match unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } {
            0 if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            0 => return None,
            -1 => return Some(-1),
            _ => return Some(status),
        }
    }
}

fn child(stepper: &mut Stepper, name: &str) -> Result<Answer, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(exe)
        .args(std::env::args().skip(1))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let pid = child.id();
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("a child without pipes".into());
    };
    let output = BufReader::new(output);
    stepper
        .children
        .insert(name.to_owned(), Child { input, output });
    Ok(Answer::default().number("pid", pid))
}
