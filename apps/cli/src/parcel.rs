//! Reading of a file into shared memory.

use std::path::{Path, PathBuf};

use tensorlend::{Client, Draft, ValueDraft};

use crate::failure::Failure;
use crate::files::{self, RawSpec};
use crate::progress::Progress;
use crate::summary::{Summary, TensorSummary, now_ns};

/// The tensors of a file, read into unpublished drafts.
pub struct Parcel {
    path: PathBuf,
    tensors: Vec<(Option<String>, Draft)>,
}

impl Parcel {
    /// Reads a whole file. A damaged file is an error.
    pub fn read(client: &Client, path: &Path, raw: Option<RawSpec>) -> Result<Self, Failure> {
        let entries = files::open(path, raw)?;
        let total = entries.iter().fold(0u64, |sum, entry| sum.saturating_add(entry.bytes));
        let _progress = Progress::bytes(&path.display().to_string(), total);
        let mut tensors = Vec::with_capacity(entries.len());
        for entry in entries {
            let draft = client.create(entry.dtype, &entry.shape);
            let mut draft =
                draft.map_err(|cause| Failure::Content { path: path.to_owned(), cause: Box::new(cause) })?;
            entry.read_into(draft.bytes_mut())?;
            draft.set_timestamp(now_ns());
            tensors.push((entry.name, draft));
        }
        Ok(Self { path: path.to_owned(), tensors })
    }

    /// Returns true if the file becomes a dataset. Each file with named tensors becomes a dataset,
    /// even if it has only one tensor.
    fn is_dataset(&self) -> bool {
        !matches!(self.tensors.as_slice(), [(None, _)])
    }

    /// Returns the description of the file's tensors.
    pub fn summary(&self) -> Summary {
        let mut tensors =
            self.tensors.iter().map(|(name, draft)| TensorSummary::new(name.as_deref(), draft.dtype(), draft.shape()));
        if self.is_dataset() {
            return Summary::dataset(tensors.collect());
        }
        Summary::Tensor(tensors.next().expect("a parcel that is no dataset holds one tensor"))
    }

    /// Returns the file as one value, with metadata.
    pub fn whole(mut self, client: &Client, metadata: &[u8]) -> Result<ValueDraft, Failure> {
        if !self.is_dataset() {
            let (_, draft) = self.tensors.remove(0);
            return with_metadata(draft, metadata);
        }
        let path = self.path;
        let in_file = |cause| Failure::Content { path: path.clone(), cause: Box::new(cause) };
        let mut dataset = client.dataset().metadata(metadata)?.timestamp(now_ns());
        for (name, draft) in self.tensors {
            dataset = dataset.add(&name.unwrap_or_default(), draft).map_err(in_file)?;
        }
        Ok(dataset.into())
    }

    /// Returns each tensor as a separate value, with its name in the file. Each value gets the
    /// metadata.
    pub fn split(self, metadata: &[u8]) -> Result<Vec<(Option<String>, TensorSummary, ValueDraft)>, Failure> {
        let each = self.tensors.into_iter().map(|(name, draft)| {
            let summary = TensorSummary::new(None, draft.dtype(), draft.shape());
            Ok((name, summary, with_metadata(draft, metadata)?))
        });
        each.collect()
    }
}

fn with_metadata(mut draft: Draft, metadata: &[u8]) -> Result<ValueDraft, Failure> {
    draft.set_metadata(metadata)?;
    Ok(draft.into())
}
