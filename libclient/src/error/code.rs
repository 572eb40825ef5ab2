//! Stable codes of errors.

use super::{DeviceTrouble, Error, RemoteTrouble};

impl Error {
    /// Returns the stable code of this kind of error, such as `TL-0301`. The code is the same in every language and
    /// version. The manual's page on errors explains each code. The daemon's reasons for a refusal have codes of their
    /// own.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// assert_eq!(client.get("nothing").unwrap_err().code(), "TL-0301");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoDaemon { .. } => "TL-0101",
            Self::Disconnected { .. } => "TL-0102",
            Self::NotAnswering { .. } => "TL-0103",
            Self::SessionEnded => "TL-0104",
            Self::Forked => "TL-0107",
            Self::MemoryLimit { .. } => "TL-0203",
            Self::Leases(_) => "TL-0204",
            Self::Cursors(_) => "TL-0205",
            Self::Descriptors { .. } => "TL-0206",
            Self::NotFound(_) => "TL-0301",
            Self::NoSuch { .. } => "TL-0302",
            Self::Kind { .. } => "TL-0304",
            Self::DType { .. } => "TL-0305",
            Self::Damaged { .. } => "TL-0306",
            Self::Timeout { .. } => "TL-0307",
            Self::Name { .. } => "TL-0401",
            Self::Tensor { .. } => "TL-0402",
            Self::Length { .. } => "TL-0403",
            Self::Strided => "TL-0404",
            Self::Metadata(_) => "TL-0405",
            Self::Argument(_) => "TL-0406",
            Self::StreamFull(_) => "TL-0501",
            Self::StreamEnded(_) => "TL-0502",
            Self::Answer { .. } => "TL-0504",
            Self::ServerGone(_) => "TL-0505",
            Self::Kernel(_) => "TL-0901",
            Self::Protocol { .. } => "TL-0902",
            Self::Sheet(_) => "TL-0903",
            Self::System { .. } => "TL-0904",
            Self::Refused { refusal, .. } => refusal.code(),
            Self::Remote { cause, .. } => cause.code(),
            Self::Device { cause, .. } => cause.code(),
        }
    }
}

impl RemoteTrouble {
    /// Returns the stable code of this reason: see [`Error::code`].
    pub fn code(&self) -> &'static str {
        match self {
            Self::Nothing { .. } => "TL-0701",
            Self::Unreachable { .. } => "TL-0702",
            Self::Unknown { .. } => "TL-0703",
            Self::Refused { .. } => "TL-0704",
            Self::Gateway { .. } | Self::NotContinued => "TL-0705",
        }
    }
}

impl DeviceTrouble {
    /// Returns the stable code of this reason: see [`Error::code`].
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoFeature => "TL-0801",
            Self::NoDriver(_) => "TL-0802",
            Self::NotVisible(_) => "TL-0803",
            Self::NoSuchDevice(_) => "TL-0804",
            Self::NotLent { .. } => "TL-0805",
            Self::Unsupported(_) => "TL-0806",
            Self::OtherContext => "TL-0807",
            Self::Memory(_) => "TL-0808",
            Self::Unfinished => "TL-0809",
            Self::Driver(_) => "TL-0810",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn debug_prints_the_text_as_main_and_unwrap_need_it() {
        let error = Error::Timeout { what: "\"x\"".into(), waited: Duration::from_millis(1500) };
        assert_eq!(format!("{error:?}"), "timed out after 1.5 s waiting for \"x\"");
        // `fn main() -> Result<(), tensorlend::Error>` prints this text after "Error: ".
        let none = Error::NoDaemon { tried: "/nowhere".into(), cause: std::io::ErrorKind::NotFound.into() };
        assert!(format!("{none:?}").starts_with("no tensorlend daemon responds at /nowhere ("), "{none:?}");
    }

    #[test]
    fn a_lost_connection_tells_whether_the_request_may_have_been_carried_out() {
        let lost = |asked| Error::Disconnected { doing: "publish", asked }.to_string();
        assert!(lost(true).contains("it may have carried out the request"), "{}", lost(true));
        assert!(lost(false).contains("it did not carry out the request"), "{}", lost(false));
    }

    #[test]
    fn sizes_have_binary_units() {
        let text = Error::MemoryLimit { asked: 4 << 30, used: 3 << 19, limit: 1 << 20 }.to_string();
        assert!(text.starts_with("4 GiB more would pass this client's memory limit: 1.5 MiB of 1 MiB"), "{text}");
    }
}
