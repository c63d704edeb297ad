//! A file as the daemon sends it, one piece at a time: it may be larger than memory.

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use tokio::task::JoinHandle;

use crate::{ANSWER_TIMEOUT, ClientError};

/// A file on its way.
pub struct Download {
    body: Incoming,
    driving: JoinHandle<()>,
}

impl Download {
    pub(crate) fn new(body: Incoming, driving: JoinHandle<()>) -> Self {
        Self { body, driving }
    }

    /// The next piece; nothing when all of it was there. A file that was cut short is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            let frame = tokio::time::timeout(ANSWER_TIMEOUT, self.body.frame()).await;
            match frame.map_err(|_| ClientError::TimedOut)? {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => return Err(ClientError::Broken(error.to_string())),
                None => return Ok(None),
            }
        }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.driving.abort();
    }
}
