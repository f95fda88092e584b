//! One line of JSON for each step.

use std::fmt::Write;

/// What a step found out: a flat JSON object.
#[derive(Debug, Default, Clone)]
pub(crate) struct Answer(String);

impl Answer {
    /// An answer that begins with the driver's or NVML's code; a missing function is -1.
    pub(crate) fn code(code: Option<i32>) -> Self {
        Self::default().number("rc", i128::from(code.unwrap_or(-1)))
    }

    /// Says why a step could not be made at all.
    pub(crate) fn failure(reason: &str) -> Self {
        Self::default().text("failure", reason)
    }

    /// Adds a number.
    pub(crate) fn number(mut self, key: &str, value: impl Into<i128>) -> Self {
        let value: i128 = value.into();
        self.comma();
        _ = write!(self.0, "\"{key}\":{value}");
        self
    }

    /// Adds a truth value.
    pub(crate) fn flag(mut self, key: &str, value: bool) -> Self {
        self.comma();
        _ = write!(self.0, "\"{key}\":{value}");
        self
    }

    /// Adds a string.
    pub(crate) fn text(mut self, key: &str, value: &str) -> Self {
        self.comma();
        _ = write!(self.0, "\"{key}\":{}", quoted(value));
        self
    }

    /// Adds a list of strings.
    pub(crate) fn list<'a>(
        mut self,
        key: &str,
        values: impl IntoIterator<Item = &'a String>,
    ) -> Self {
        self.comma();
        let values: Vec<String> = values.into_iter().map(|value| quoted(value)).collect();
        _ = write!(self.0, "\"{key}\":[{}]", values.join(","));
        self
    }

    /// Adds another answer as an object.
    pub(crate) fn object(mut self, key: &str, json: &str) -> Self {
        self.comma();
        _ = write!(self.0, "\"{key}\":{json}");
        self
    }

    /// The whole object on one line.
    pub(crate) fn json(&self) -> String {
        format!("{{{}}}", self.0)
    }

    fn comma(&mut self) {
        if !self.0.is_empty() {
            self.0.push(',');
        }
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                out.push('\\');
                out.push(character);
            }
            control if control < ' ' => _ = write!(out, "\\u{:04x}", u32::from(control)),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}
