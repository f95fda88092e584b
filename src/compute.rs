//! The options with which a share of GPU time is asked for; `run` and `set` have them.

use daemon::api::ComputeRequest;
use daemon::terms::{TermsError, Wanted};

/// A share of GPU time.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Share of GPU time")]
pub(crate) struct ShareArguments {
    /// Guarantee: this part of each GPU's time whenever it has work, such as 30%
    #[arg(long, value_name = "PART", value_parser = guarantee)]
    compute: Option<String>,
    /// Ceiling: never more than this part, also on an idle GPU, such as 50%; max: none
    #[arg(long, value_name = "PART", value_parser = ceiling)]
    compute_max: Option<String>,
    /// How what is left is divided, 1 to 10000 [default: the guarantee in permille, else 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    weight: Option<u32>,
    /// latency: requests that somebody waits for, prompt within the guarantee; standard; batch: work that
    /// nobody waits for
    #[arg(long, value_name = "CLASS", value_parser = ["latency", "standard", "batch"])]
    class: Option<String>,
}

impl ShareArguments {
    /// As the daemon is asked.
    pub(crate) fn request(&self) -> ComputeRequest {
        ComputeRequest {
            compute: self.compute.clone(),
            compute_max: self.compute_max.clone(),
            weight: self.weight,
            class: self.class.clone(),
        }
    }

    /// Whether nothing was asked for.
    pub(crate) fn is_empty(&self) -> bool {
        self.request() == ComputeRequest::default()
    }
}

/// Checks a part before anybody is asked, for `clap`.
fn guarantee(text: &str) -> Result<String, TermsError> {
    Wanted::parse(Some(text), None, None, None).map(|_| text.to_owned())
}

fn ceiling(text: &str) -> Result<String, TermsError> {
    Wanted::parse(None, Some(text), None, None).map(|_| text.to_owned())
}
