//! Variables as a POSIX shell reads them.

/// One `export` for each variable, quoted so that the shell obeys nothing in a value.
#[must_use]
pub fn exports(variables: &[(&str, String)]) -> String {
    variables
        .iter()
        .map(|(name, value)| format!("export {name}='{}'\n", value.replace('\'', r"'\''")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_shell_reads_back_each_value_and_obeys_none() {
        let value = "it's $(false) `x` \"y\" \\ z\n!";
        let script = exports(&[("SLUICE_NAME", value.to_owned())]) + "printf %s \"$SLUICE_NAME\"";
        let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), value);
    }
}
