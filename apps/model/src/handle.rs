//! A connection to the runners of one model.

use crate::document::Fault;
use crate::{ModelRequest, Models, model_bytes_name, model_fault_name, model_service};
use std::time::Duration;
use tensorlend::{Caller, Client, Dataset, Deadline, Error, Result, Timeout, Value, Version, check_name};

/// Interval at which a caller that waits for a runner checks whether the model exists and has a fault.
const POLL: Duration = Duration::from_millis(200);
/// Time that a caller waits for the reason of a worker's end.
const REASON: Duration = Duration::from_secs(1);
/// Number of successive runners that may end without a reason before a request fails. Another runner
/// may have replaced each of these runners during the request.
const GONE_MAX: u32 = 3;

/// A connection to the runners of one model. Each thread opens a connection of its own.
///
/// ```no_run
/// # let client = tensorlend::Client::connect()?;
/// use std::time::Duration;
/// use tensorlend_model::{ModelRequest, Models};
///
/// let mut model = Models::new(&client).open("classifier")?;
/// for name in ["camera/left", "camera/right"] {
///     let outputs = model.run(ModelRequest::new().input_from("image", name), Duration::from_secs(10))?;
///     println!("{name}: {:?}", outputs.tensor("scores")?.as_slice::<f32>()?);
/// }
/// # Ok::<(), tensorlend::Error>(())
/// ```
pub struct Model {
    models: Models,
    name: String,
    caller: Caller,
    /// Version of the last known fault.
    seen: Version,
    /// Version of the model when the client connected to its runner.
    connected: Version,
}

impl Model {
    pub(crate) fn open(models: &Models, name: &str) -> Result<Self> {
        check_name(&model_bytes_name(name))?;
        let caller = models.client().caller(&model_service(name)).open()?;
        Ok(Self {
            models: models.clone(),
            name: name.to_owned(),
            caller,
            seen: Version::NONE,
            connected: Version::NONE,
        })
    }

    /// Returns the model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the model: sends the request to a runner and waits for the response, at most `timeout`.
    /// The response is a dataset of outputs by name. [`ModelAnswer`](crate::ModelAnswer) reads its
    /// metadata.
    ///
    /// If a runner ends without a fault of the model, the client repeats a request whose inputs are
    /// all names. The model may then run twice on the same inputs.
    ///
    /// # Errors
    /// [`Error::Answer`] with the reason if the runner rejected the request, the model failed, or
    /// its worker crashed or was stopped; [`Error::NoSuch`] if there is no such model;
    /// [`Error::Timeout`]; [`Error::ServerGone`] if a runner ended without a reason and the request
    /// cannot be repeated.
    pub fn run(&mut self, request: ModelRequest, timeout: impl Into<Timeout>) -> Result<Dataset> {
        // `|| true` never ends the wait: the result is a response or an error.
        let answer = self.run_while(request, timeout, || true)?;
        answer.ok_or_else(|| Error::ServerGone(model_service(&self.name)))
    }

    /// Runs the model like [`Model::run`], for a wait that may have to end early. The client calls
    /// `continues` several times a second. If `continues` returns false, the client disconnects from
    /// the runner and returns `None`.
    ///
    /// # Errors
    /// The errors of [`Model::run`].
    pub fn run_while(
        &mut self,
        mut request: ModelRequest,
        timeout: impl Into<Timeout>,
        mut continues: impl FnMut() -> bool,
    ) -> Result<Option<Dataset>> {
        let deadline = Deadline::new(timeout);
        let mut gone = 0;
        loop {
            if !self.ready(deadline, &mut continues)? {
                return Ok(None);
            }
            let repeatable = request.is_repeatable();
            let message = request.message(self.client())?;
            match self.caller.call_while(message, deadline.left(), &mut continues) {
                Ok(Some(Value::Dataset(outputs))) => return Ok(Some(outputs)),
                Ok(None) => return Ok(None),
                Ok(Some(_)) => {
                    let why =
                        "its server responded with a tensor, not a dataset: check that it is tensorlend-runner".into();
                    return Err(Error::Answer { service: model_service(&self.name), why });
                }
                Err(Error::ServerGone(service)) => {
                    // The runner of a replaced model ends without a reason.
                    let wait = if self.is_replaced() { Duration::ZERO } else { deadline.left_at_most(REASON) };
                    if let Some(fault) = self.news(wait)? {
                        return Err(Error::Answer { service, why: fault.why });
                    }
                    gone += 1;
                    if !repeatable || gone == GONE_MAX || deadline.is_over() {
                        return Err(Error::ServerGone(service));
                    }
                }
                // The error reports the duration of the whole wait, not of the last attempt.
                Err(Error::Timeout { what, .. }) => return Err(deadline.error(what)),
                Err(error) => return Err(error),
            }
        }
    }

    fn client(&self) -> &Client {
        self.models.client()
    }

    /// Connects to a runner. Returns false if `continues` ended the wait. Returns an error if no
    /// runner can start.
    fn ready(&mut self, deadline: Deadline, continues: &mut dyn FnMut() -> bool) -> Result<bool> {
        if self.caller.has_server()? {
            return Ok(true);
        }
        // The faults of earlier runners do not concern the next runner.
        if let Ok(old) = self.client().get(&model_fault_name(&self.name)) {
            self.seen = old.version();
        }
        loop {
            let model = match self.client().info(&model_bytes_name(&self.name)) {
                Ok(info) => info.version,
                Err(error) if error.is_not_found() => {
                    return Err(Error::NoSuch { kind: "model", name: self.name.clone() });
                }
                Err(error) => return Err(error),
            };
            if let Ok(Some(fault)) = self.models.fault(&self.name)
                && fault.refused == Some(model.words())
            {
                return Err(Error::Answer { service: model_service(&self.name), why: fault.why });
            }
            self.connected = model;
            match self.caller.wait_server(deadline.left_at_most(POLL)) {
                Err(error) if error.is_timeout() && !deadline.is_over() => {
                    if !continues() {
                        return Ok(false);
                    }
                }
                Err(error) if error.is_timeout() => {
                    return Err(
                        deadline.error(format!("a runner of model {:?}: no tensorlend-runner serves it", self.name))
                    );
                }
                other => return other.map(|()| true),
            }
        }
    }

    /// Returns true if the model has another version than when the client connected to its runner.
    fn is_replaced(&self) -> bool {
        self.client().info(&model_bytes_name(&self.name)).is_ok_and(|info| info.version != self.connected)
    }

    /// Waits for a fault that is newer than the last known fault.
    fn news(&mut self, timeout: Duration) -> Result<Option<Fault>> {
        match self.client().wait_newer(&model_fault_name(&self.name), self.seen, timeout) {
            Ok(lease) => {
                self.seen = lease.version();
                Ok(lease.as_slice::<u8>().ok().and_then(|bytes| serde_json::from_slice(bytes).ok()))
            }
            Err(error) if error.is_timeout() || error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("name", &self.name).finish_non_exhaustive()
    }
}
