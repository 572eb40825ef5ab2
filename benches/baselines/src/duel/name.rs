//! Exchanges through two names: each party replaces the value of its own name, and polls the other party's name.

use tensorlend::{Client, DType, Draft, Version};

use super::invitation::{Invitation, MEETING};
use crate::BaselineError;
use crate::end::PingPong;

/// An end that publishes, and polls inside `wait_newer`.
pub(super) struct NamePoller {
    client: Client,
    /// The next draft. It is made before the wait for the previous response, so that making it does not delay the other party.
    draft: Option<Draft>,
    bytes: u64,
    ours: String,
    theirs: String,
    seen: Version,
}

impl NamePoller {
    pub(super) fn meet(invitation: &Invitation) -> Result<Self, BaselineError> {
        let client = invitation.client()?;
        let (ours, theirs) = invitation.ends();
        let [ours, theirs] = [ours, theirs].map(|end| format!("bench/{}/{end}", invitation.tag));
        let bytes = invitation.bytes as u64;
        client.create(DType::U8, &[bytes])?.publish(&ours)?;
        let seen = client.wait_for(&theirs, MEETING)?.version();
        let draft = Some(client.create(DType::U8, &[bytes])?);
        Ok(Self { client, draft, bytes, ours, theirs, seen })
    }
}

impl PingPong for NamePoller {
    fn send(&mut self) -> Result<(), BaselineError> {
        if let Some(draft) = self.draft.take() {
            draft.publish(&self.ours)?;
        }
        self.draft = Some(self.client.create(DType::U8, &[self.bytes])?);
        Ok(())
    }

    fn receive(&mut self) -> Result<(), BaselineError> {
        self.seen = self.client.wait_newer(&self.theirs, self.seen, MEETING)?.version();
        Ok(())
    }
}

impl Drop for NamePoller {
    fn drop(&mut self) {
        // Delete the name, because the daemon may outlive the benchmark.
        let _ = self.client.delete(&self.ours);
    }
}
