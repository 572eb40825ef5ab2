//! `tensorlend put`: publishes a file as a tensor or a dataset.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tensorlend::Client;

use crate::failure::Failure;
use crate::options::{Connection, Json, Life, Notes, Raw};
use crate::output;
use crate::parcel::Parcel;
use crate::publish::{Existing, Publisher};
use crate::summary::Summary;

const EXAMPLES: &str = "\
Examples:
  tensorlend put weights model.safetensors
  tensorlend put photo china.jpg --metadata 'Beijing, 2008'
  tensorlend put frame frame.raw --dtype u8 --shape 480x640x3
  tensorlend put model model.safetensors --split      model/layer1, model/layer2, ...
  tensorlend put goal goal.npy --ttl 10s
";

/// Publish a file under a name.
///
/// .npy, .png, .jpg and raw files become a tensor; .npz and .safetensors a dataset of the tensors in them. The command
/// reads the file into shared memory and publishes it only when it is complete: a damaged file publishes nothing.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PutArgs {
    /// The name, 1 to 255 bytes; its previous value is replaced.
    name: String,
    /// .npy, .npz, .safetensors, .png, .jpg; any other file with --dtype and --shape.
    file: PathBuf,
    #[command(flatten)]
    raw: Raw,
    #[command(flatten)]
    notes: Notes,
    #[command(flatten)]
    life: Life,
    /// Publish each tensor of the file as NAME/its-own-name, instead of a dataset: all of them, or none.
    #[arg(long)]
    split: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct Published {
    name: String,
    #[serde(flatten)]
    summary: Summary,
}

impl PutArgs {
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        let client = &at.open("put")?;
        // Reject an invalid name before reading a large file.
        client.exists(&self.name)?;
        let published = self.publish(client, at).map_err(|e| e.context(format!("cannot put {:?}", self.name)))?;
        if self.json.on {
            output::json(&serde_json::json!({ "published": published }))?;
        } else {
            published.iter().try_for_each(|it| output::line(format_args!("{}: {}", it.name, it.summary)))?;
        }
        if self.life.ephemeral {
            stay(client)?;
        }
        Ok(())
    }

    fn publish(&self, client: &Client, at: &Connection) -> Result<Vec<Published>, Failure> {
        let metadata = self.notes.metadata.as_ref().map_or(&[][..], |m| &m.0);
        let parcel = Parcel::read(client, &self.file, self.raw.spec())?;
        if !self.split {
            let summary = parcel.summary();
            parcel.whole(client, metadata)?.publish_for(&self.name, self.life.lifetime())?;
            return Ok(vec![Published { name: self.name.clone(), summary }]);
        }
        let parts = parcel.split(metadata)?;
        let named: Vec<_> = parts
            .into_iter()
            .map(|(member, summary, message)| {
                let name = member.map_or_else(|| self.name.clone(), |member| format!("{}/{member}", self.name));
                (Published { name, summary: Summary::Tensor(summary) }, message)
            })
            .collect();
        // Check all names before publishing the first tensor.
        let mut new_names = 0;
        for (part, _) in &named {
            let exists = client.exists(&part.name);
            let exists =
                exists.map_err(|cause| Failure::Content { path: self.file.clone(), cause: Box::new(cause) })?;
            new_names += usize::from(!exists);
        }
        let open = || at.open("put");
        let (lifetime, existing) = (self.life.lifetime(), Existing::Replace);
        let publisher = Publisher { client, open: &open, lifetime, existing };
        publisher.check_room(new_names)?;
        let (mut published, mut drafts) = (Vec::with_capacity(named.len()), Vec::with_capacity(named.len()));
        for (part, draft) in named {
            drafts.push((part.name.clone(), draft));
            published.push(part);
        }
        publisher.publish(drafts)?;
        Ok(published)
    }
}

/// Keeps the session open until the user stops the command or the daemon ends. The ephemeral names
/// live as long as the session.
fn stay(client: &Client) -> Result<(), Failure> {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        client.ping()?;
    }
}
