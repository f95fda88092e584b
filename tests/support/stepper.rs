//! Telling a `stepper` what to do.

use super::{PATIENCE, Program, kill};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// What a stepper fills outputs with before each call.
pub const POISON: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// A running CUDA program that does one step at a time. Killed when it is dropped.
#[derive(Debug)]
pub struct Stepper {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Stepper {
    /// Starts `command`, which runs a stepper in the end.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
        let input = child.stdin.take();
        let output = child.stdout.take().expect("was asked for above");
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            input,
            answers,
        }
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Does one step, within `bound`.
    #[track_caller]
    pub fn step_within(&mut self, step: &str, bound: Duration) -> Value {
        self.begin(step);
        self.answer(step, bound)
    }

    /// Tells the program a step without waiting for its answer.
    #[track_caller]
    pub fn begin(&mut self, step: &str) {
        let input = self.input.as_mut().expect("the program still listens");
        if let Err(error) = writeln!(input, "{step}") {
            panic!("\"{step}\" cannot be told: {error}; {}", self.end());
        }
    }

    /// The next answer, to `step`.
    #[track_caller]
    pub fn answer(&mut self, step: &str, bound: Duration) -> Value {
        let line = match self.answers.recv_timeout(bound) {
            Ok(line) => line,
            Err(_) => panic!("no answer to \"{step}\" within {bound:?}; {}", self.end()),
        };
        let value: Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("\"{step}\" answers no JSON ({error}): {line}"));
        assert!(value.get("failure").is_none(), "\"{step}\": {line}");
        value
    }

    /// Does one step.
    #[track_caller]
    pub fn step(&mut self, step: &str) -> Value {
        self.step_within(step, PATIENCE)
    }

    /// Does one step and returns its code.
    #[track_caller]
    pub fn code(&mut self, step: &str) -> i64 {
        number(&self.step(step), "rc")
    }

    /// Does one step that must succeed.
    #[track_caller]
    pub fn ok(&mut self, step: &str) -> Value {
        let answer = self.step(step);
        assert_eq!(number(&answer, "rc"), 0, "\"{step}\": {answer}");
        answer
    }

    /// Does one step that must be refused as the driver refuses it: out of memory, outputs untouched.
    #[track_caller]
    pub fn refused(&mut self, step: &str) -> Value {
        let answer = self.step(step);
        assert_eq!(
            number(&answer, "rc"),
            super::OUT_OF_MEMORY,
            "\"{step}\": {answer}"
        );
        assert_ne!(answer["untouched"], false, "\"{step}\": {answer}");
        answer
    }

    /// `cuMemGetInfo`: free and total.
    #[track_caller]
    pub fn info(&mut self) -> (u64, u64) {
        let answer = self.ok("info");
        (
            number(&answer, "free") as u64,
            number(&answer, "total") as u64,
        )
    }

    /// What `cuMemGetInfo` shows as used.
    #[track_caller]
    pub fn used(&mut self) -> u64 {
        let (free, total) = self.info();
        total - free
    }

    /// Does a step in a stepper that this one started, and returns that one's answer.
    #[track_caller]
    pub fn tell(&mut self, name: &str, step: &str) -> Value {
        let answer = self.step(&format!("tell {name} {step}"));
        answer["child"].clone()
    }

    /// Ends the program as a program ends by itself, without giving its memory back.
    #[track_caller]
    pub fn quit(mut self) {
        self.begin("quit");
        let begin = Instant::now();
        while self.child.try_wait().expect("our own child").is_none() {
            assert!(begin.elapsed() < PATIENCE, "\"quit\" does not end it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// `kill -9`, and waits until it is dead.
    pub fn kill(mut self) {
        self.end();
    }

    /// `kill -9` without waiting: the process stays as a zombie.
    pub fn kill_and_leave(&mut self) {
        kill(self.child.id());
    }

    fn end(&mut self) -> String {
        _ = self.child.kill();
        format!("the program ended with {:?}", self.child.wait())
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        self.end();
    }
}

/// A stepper on this command's environment.
pub fn program() -> Command {
    Command::new(Program::Stepper.path())
}

/// The number called `key` in an answer.
#[track_caller]
pub fn number(answer: &Value, key: &str) -> i64 {
    answer[key]
        .as_i64()
        .unwrap_or_else(|| panic!("no number {key} in {answer}"))
}
