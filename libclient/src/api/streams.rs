//! Starting streams, subscriptions and datasets.

use crate::client::Client;
use crate::error::{Error, Result, check_name};
use crate::stream::StreamBuilder;
use crate::stream::subscribe::SubscriptionBuilder;
use crate::stream::subscriber::Subscription;
use crate::tensor::dataset::DatasetDraft;
use tensorlend_layout::wire::{Reply, Request};

impl Client {
    /// Starts a dataset: several tensors that are published and leased as one value.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let image = client.create(tensorlend::DType::U8, [480, 640, 3])?;
    /// let depth = client.create(tensorlend::DType::F32, [480, 640])?;
    /// client.dataset().add("image", image)?.add("depth", depth)?.publish("frame")?;
    /// assert_eq!(client.get_dataset("frame")?.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dataset(&self) -> DatasetDraft {
        DatasetDraft::new(self.session().clone())
    }

    /// Starts a stream as its only producer. [`StreamBuilder::open`] opens it.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let camera = client.stream("camera").capacity(4).open()?;
    /// camera.send(client.create(tensorlend::DType::U8, [480, 640, 3])?)?;
    /// assert_eq!(camera.sent(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stream(&self, name: &str) -> StreamBuilder {
        StreamBuilder::new(self.session().clone(), name)
    }

    /// Subscribes to an existing stream, from its newest message on. Blocks for a round trip to the daemon.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// camera.send(client.create(tensorlend::DType::U8, [480, 640, 3])?)?;
    /// let mut frames = client.subscribe("camera")?;
    /// assert_eq!(frames.recv()?.sequence(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuch`] if there is no such stream; [`Error::Cursors`] if 256 subscriptions are open already;
    /// [`Error::Refused`] if the stream has the maximum number of subscribers.
    pub fn subscribe(&self, name: &str) -> Result<Subscription> {
        self.subscription(name).open()
    }

    /// Subscribes with options: to begin at the oldest message, to get a descriptor for epoll, or to wait for a
    /// stream that is not open yet.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::Start;
    ///
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscription("camera").start_at(Start::Oldest).open()?;
    /// assert!(frames.try_recv()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn subscription(&self, name: &str) -> SubscriptionBuilder {
        SubscriptionBuilder::new(self.clone(), name)
    }

    /// Deletes a stream and its messages. Returns false if there was no such stream. Its subscribers see its end, and
    /// its producer's next send fails with [`Error::StreamEnded`].
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// assert!(client.delete_stream("camera")?);
    /// assert!(!client.delete_stream("camera")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] if this client has no right to write.
    pub fn delete_stream(&self, name: &str) -> Result<bool> {
        check_name(name)?;
        self.session().check()?;
        let request = Request::StreamDelete { name: name.to_owned() };
        match self.session().control.call(&request, "delete stream", name)? {
            Reply::Deleted { existed } => Ok(existed),
            _ => Err(Error::Protocol { doing: "delete a stream" }),
        }
    }
}
