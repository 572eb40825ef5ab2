//! Properties of the public types that programs rely on, checked by the compiler.

use std::error::Error as StdError;
use std::fmt::Debug;
use std::hash::Hash;
use tensorlend::{
    Allocation, Borrowed, Call, Caller, CallerBuilder, Client, ClientBuilder, Collection, CopyOnWrite, DType, Dataset,
    DatasetDraft, DatasetIter, Device, Draft, Error, Glob, History, Info, InfoKind, Lease, Length, Lifetime, Listing,
    MemoryUse, Message, NameWatch, Outstanding, Pin, Policy, Relief, Reply, Server, ServerBuilder, Shaped, Spilled,
    Start, Statistics, StatisticsScope, Stream, StreamBuilder, Subscription, SubscriptionBuilder, Tensor, TensorInfo,
    TensorSpec, TensorView, Timeout, TrySendError, Uuid, Value, ValueDraft, Version,
};

macro_rules! all {
    ($($bound:path),*: $($type:ty),* $(,)?) => {{
        fn check<T: ?Sized $(+ $bound)*>() {}
        $( check::<$type>(); )*
    }};
}

#[test]
fn every_type_can_be_printed_and_moves_between_threads() {
    all!(Debug, Send, Sync:
        Allocation, Call, Caller, CallerBuilder, Client, ClientBuilder, Collection, CopyOnWrite, DType, Dataset,
        DatasetDraft, DatasetIter<'_>, Device, Draft, Error, Glob, History, Info, InfoKind, Lease, Length, Lifetime,
        Listing, MemoryUse, Message, NameWatch, Outstanding, Pin, Policy, Relief, Reply, Server, ServerBuilder,
        Shaped<'_, f32>, Spilled, Start, Statistics, StatisticsScope, Stream, StreamBuilder, Subscription,
        SubscriptionBuilder, Tensor, TensorInfo, TensorSpec, TensorView<'_>, Timeout, TrySendError<Draft>, Uuid, Value,
        ValueDraft, Version, tensorlend::observe::Observer, tensorlend::observe::Observation,
        tensorlend::remote::NodeDocument, tensorlend::remote::RemoteNames,
    );
    all!(Debug: Borrowed<'_>);
}

#[test]
fn plain_values_have_the_common_traits() {
    all!(Copy, Eq, Hash: DType, Device, Length, Lifetime, MemoryUse, Relief, Start, Timeout, Uuid, Version);
    all!(Clone, Eq, Hash: Collection, InfoKind, TensorInfo, TensorSpec);
    all!(Clone, Eq: Info, Spilled);
    all!(Clone: Client, ClientBuilder, Glob);
    all!(Default: ClientBuilder, Lifetime, Policy, Start, Statistics);
}

#[test]
fn errors_go_where_errors_go() {
    all!(StdError, Send, Sync: Error, TrySendError<Draft>, tensorlend::BadUuid, tensorlend::Refusal);
    fn question_mark() -> Result<(), Box<dyn StdError + Send + Sync>> {
        tensorlend::check_name("")?;
        Ok(())
    }
    assert!(question_mark().unwrap_err().downcast_ref::<Error>().is_some());
}

#[test]
fn values_of_the_wrong_kind_name_the_right_call() {
    let daemon = tensorlend_daemon::embedded().unwrap();
    let client = Client::builder().socket(daemon.socket()).connect().unwrap();
    client.put("one", &[1u8]).unwrap();
    client.dataset().add("depth", client.create_from(&[1.0f32]).unwrap()).unwrap().publish("several").unwrap();
    let (one, several) = (|| client.get_value("one").unwrap(), || client.get_value("several").unwrap());
    assert!(one().tensor().is_ok() && one().into_tensor().is_ok());
    assert!(several().dataset().is_ok() && several().into_dataset().is_ok());
    for (error, right) in [
        (one().dataset().map(drop).unwrap_err(), "use tensor"),
        (one().into_dataset().map(drop).unwrap_err(), "use tensor"),
        (several().tensor().map(drop).unwrap_err(), "use dataset"),
        (several().into_tensor().map(drop).unwrap_err(), "use dataset"),
    ] {
        assert!(matches!(error, Error::Kind { .. }) && error.to_string().ends_with(right), "{error}");
    }
    let several = several().into_dataset().unwrap();
    let missing = several.tensor("image").unwrap_err().to_string();
    assert_eq!(missing, "the dataset has no tensor named \"image\": it has \"depth\"");
    let names: Vec<&str> = (&several).into_iter().rev().map(|(name, _)| name).collect();
    assert_eq!(names, ["depth"]);
}
