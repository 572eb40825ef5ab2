//! A model to be run: a caller that knows what became of a runner.

use crate::deadline::Deadline;
use crate::document::Fault;
use crate::{ModelRequest, Models, model_bytes_name, model_fault_name, model_service};
use std::time::Duration;
use tensorlend::{Caller, Client, Dataset, Error, Result, Value, Version, check_name};

/// How often who waits for a runner looks whether there is a reason why none comes.
const LOOK: Duration = Duration::from_millis(200);
/// How long a runner has to say why its worker ended.
const REASON: Duration = Duration::from_secs(1);
/// Runners that may end in a row without a reason before a request is given up: each may have been replaced at that moment.
const GONE_MAX: u32 = 3;

/// A model to be run, by whichever runner serves it. For several threads, make several.
pub struct Model {
    models: Models,
    name: String,
    caller: Caller,
    /// The last fault that is known: a later one is news.
    seen: Version,
}

impl Model {
    pub(crate) fn open(models: &Models, name: &str) -> Result<Self> {
        check_name(&model_bytes_name(name))?;
        let caller = models.client().caller(&model_service(name)).open()?;
        Ok(Self { models: models.clone(), name: name.to_owned(), caller, seen: Version::NONE })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs it: sends the request to a runner and waits for the answer, for `timeout` at most (`None`: for ever). The answer is
    /// a dataset: outputs by name, and what [`ModelAnswer`](crate::ModelAnswer) reads.
    ///
    /// A request that brings no tensors along is made again where a runner ended without a fault of the model: since a model's
    /// answer follows from its inputs, it may be carried out twice.
    ///
    /// # Errors
    /// [`Error::Answer`] with the reason, where the runner refused the request, the model failed, or its worker crashed or was
    /// stopped; [`Error::NotFound`] if no such model was added; [`Error::Timeout`]; [`Error::ServerGone`] if a runner ended
    /// without a word, and the request cannot be made again.
    pub fn run(&mut self, request: ModelRequest, timeout: Option<Duration>) -> Result<Dataset> {
        // It goes on until there is an answer or an error.
        let answer = self.run_while(request, timeout, || true)?;
        answer.ok_or_else(|| Error::ServerGone(model_service(&self.name)))
    }

    /// As [`Model::run`], for who may have to stop waiting: `goes_on` is asked several times a second. If it says no, the runner is
    /// given up, and `None` comes back.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn run_while(
        &mut self,
        mut request: ModelRequest,
        timeout: Option<Duration>,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Option<Dataset>> {
        let deadline = Deadline::new(timeout);
        let mut gone = 0;
        loop {
            if !self.ready(deadline, &mut goes_on)? {
                return Ok(None);
            }
            let repeatable = request.is_repeatable();
            let message = request.message(self.client())?;
            match self.caller.call_while(message, deadline.left(), &mut goes_on) {
                Ok(Some(Value::Dataset(outputs))) => return Ok(Some(outputs)),
                Ok(None) => return Ok(None),
                Ok(Some(_)) => {
                    let why = "what serves it answered with something else than a dataset: is it a runner?".into();
                    return Err(Error::Answer { service: model_service(&self.name), why });
                }
                Err(Error::ServerGone(service)) => {
                    let wait = deadline.left().map_or(REASON, |left| left.min(REASON));
                    if let Some(fault) = self.news(wait)? {
                        return Err(Error::Answer { service, why: fault.why });
                    }
                    gone += 1;
                    if !repeatable || gone == GONE_MAX || deadline.is_over() {
                        return Err(Error::ServerGone(service));
                    }
                }
                // Of the whole wait, and not of its last part.
                Err(Error::Timeout { what, .. }) => return Err(deadline.error(what)),
                Err(error) => return Err(error),
            }
        }
    }

    fn client(&self) -> &Client {
        self.models.client()
    }

    /// Waits for a runner, unless it is known why none comes; whether it went on.
    fn ready(&mut self, deadline: Deadline, goes_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        if self.caller.has_server()? {
            return Ok(true);
        }
        // What was said before is no news of the runner that is found.
        if let Ok(old) = self.client().get(&model_fault_name(&self.name)) {
            self.seen = old.version();
        }
        loop {
            let model = match self.client().info(&model_bytes_name(&self.name)) {
                Ok(info) => info.version,
                Err(error) if error.is_not_found() => {
                    return Err(Error::NotFound(model_bytes_name(&self.name)));
                }
                Err(error) => return Err(error),
            };
            if let Ok(Some(fault)) = self.models.fault(&self.name)
                && fault.refused == Some(model.words())
            {
                return Err(Error::Answer { service: model_service(&self.name), why: fault.why });
            }
            match self.caller.wait_server(Some(deadline.at_most(LOOK))) {
                Err(error) if error.is_timeout() && !deadline.is_over() => {
                    if !goes_on() {
                        return Ok(false);
                    }
                }
                Err(error) if error.is_timeout() => {
                    return Err(deadline.error(format!("a runner of model {:?} (tensorlend-runner)", self.name)));
                }
                other => return other.map(|()| true),
            }
        }
    }

    /// A fault that was not known.
    fn news(&mut self, timeout: Duration) -> Result<Option<Fault>> {
        match self.client().wait_newer(&model_fault_name(&self.name), self.seen, Some(timeout)) {
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
