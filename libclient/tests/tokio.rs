//! The optional feature `tokio`, with an embedded daemon.

use futures_util::future::{join, join_all, select};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::Read;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};
use tensorlend::{AsyncClient, AsyncSubscription, Client, DType, Draft, Error, Lease, Message, Policy, Start, Version};
use tensorlend_daemon::Embedded;
use tokio::time::timeout;

/// A timeout that only a hang reaches.
const LONG: Duration = Duration::from_mins(5);
/// Long enough for a task to fall asleep; no assertion depends on it.
const SHORT: Duration = Duration::from_millis(20);

fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded broker starts")
}

fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).connect().expect("a client connects")
}

fn draft(client: &Client, value: u64) -> Draft {
    let mut draft = client.create(DType::U64, &[64]).unwrap();
    draft.as_mut_slice::<u64>().unwrap().fill(value);
    draft
}

fn first(lease: &Lease) -> u64 {
    let slice = lease.as_slice::<u64>().unwrap();
    assert!(slice.iter().all(|v| *v == slice[0]), "torn");
    slice[0]
}

fn value(message: &Message) -> u64 {
    first(message.tensor().unwrap())
}

/// Runs a test on one thread.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(LONG, test).await.expect("it hangs") })
}

/// A counter of wake-ups of a task.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the number of this process's threads with this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let named = tasks.filter(|task| {
        let comm = std::fs::read_to_string(task.as_ref().unwrap().path().join("comm"));
        // A thread that has just ended has no name.
        comm.is_ok_and(|comm| comm.trim_end() == name)
    });
    named.count()
}

async fn subscribe(client: &Client, name: &str) -> AsyncSubscription {
    client.subscription(name).start_at(Start::Oldest).open_async().await.unwrap()
}

#[test]
fn a_message_is_received_whether_sent_before_or_after() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    run(async {
        let stream = producer.stream("s").capacity(4).open().unwrap();
        stream.send(draft(&producer, 0)).unwrap();
        let mut messages = subscribe(&consumer, "s").await;
        assert_eq!(value(&messages.recv().await.unwrap()), 0);
        assert!(messages.try_recv().unwrap().is_none());

        let received = tokio::spawn(async move {
            let message = messages.recv().await.unwrap();
            (value(&message), message.sequence(), messages.position(), messages.lost(), messages.name().to_owned())
        });
        tokio::time::sleep(SHORT).await;
        stream.send(draft(&producer, 1)).unwrap();
        assert_eq!(received.await.unwrap(), (1, 1, 2, 0, "s".to_owned()));
    });
}

#[test]
fn a_producer_thread_and_a_slower_task_pass_every_message_in_order() {
    const COUNT: u64 = 5000;
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let stream = producer.stream("s").capacity(3).policy(Policy::Block).open().unwrap();
    run(async {
        let messages = subscribe(&consumer, "s").await;
        let sender = std::thread::spawn(move || {
            for number in 0..COUNT {
                stream.send(draft(&producer, number)).unwrap();
            }
        });
        let got: Vec<u64> = messages.map_ok(|message| value(&message)).try_collect().await.unwrap();
        assert!(got.into_iter().eq(0..COUNT));
        sender.join().unwrap();
    });
}

#[test]
fn a_busy_subscription_lets_other_tasks_run() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let stream = producer.stream("s").capacity(1024).open().unwrap();
    run(async {
        let mut messages = subscribe(&consumer, "s").await;
        for number in 0..1024 {
            stream.send(draft(&producer, number)).unwrap();
        }
        let mut received = pin!(async {
            for _ in 0..1024 {
                messages.recv().await.unwrap();
            }
        });
        let paused = poll_fn(|cx| Poll::Ready(received.as_mut().poll(cx).is_pending())).await;
        assert!(paused, "1024 messages without a pause");
        received.await;
    });
}

#[test]
fn streams_combine_and_end() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    run(async {
        let (left, right) = (producer.stream("left").open().unwrap(), producer.stream("right").open().unwrap());
        let both = stream::select(subscribe(&consumer, "left").await, subscribe(&consumer, "right").await);
        for number in 0..5 {
            left.send(draft(&producer, number)).unwrap();
            right.send(draft(&producer, 100 + number)).unwrap();
        }
        let sender = std::thread::spawn(move || {
            std::thread::sleep(SHORT);
            drop((left, right));
        });
        let mut got: Vec<u64> = both.map(|message| value(&message.unwrap())).collect().await;
        got.sort_unstable();
        assert_eq!(got, [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]);
        sender.join().unwrap();

        // The end of the stream ends a combinator, but is an error of recv; a later poll returns it again.
        let stream = producer.stream("again").open().unwrap();
        let mut messages = subscribe(&consumer, "again").await;
        drop(stream);
        assert!(matches!(messages.recv().await, Err(Error::StreamEnded(_))));
        assert!(messages.next().await.is_none());
        let stream = producer.stream("again").open().unwrap();
        let received = tokio::spawn(async move { value(&messages.recv().await.unwrap()) });
        tokio::time::sleep(SHORT).await;
        stream.send(draft(&producer, 7)).unwrap();
        assert_eq!(received.await.unwrap(), 7);
    });
}

#[test]
fn a_stream_that_is_deleted_ends_for_who_awaits_it() {
    let broker = broker();
    let (producer, consumer, other) = (client(&broker), client(&broker), client(&broker));
    run(async {
        // The producer notices no waiter and rings no bell.
        let stream = producer.stream("s").open().unwrap();
        let mut messages = subscribe(&consumer, "s").await;
        let received = tokio::spawn(async move { messages.recv().await });
        tokio::time::sleep(SHORT).await;
        assert!(other.delete_stream("s").unwrap());
        assert!(matches!(received.await.unwrap(), Err(Error::StreamEnded(_))));
        drop(stream);
    });
}

#[test]
fn a_producer_process_is_awaited_and_its_death_is_noticed() {
    const SOCKET: &str = "TENSORLEND_TEST_PRODUCER";
    if let Some(socket) = std::env::var_os(SOCKET) {
        // The producer process. It is killed, or ends with the test that started it.
        let producer = Client::builder().socket(socket).connect().unwrap();
        draft(&producer, 5).publish("late").unwrap();
        let stream = producer.stream("s").open().unwrap();
        stream.wait_subscribers(1, LONG).unwrap();
        stream.send(draft(&producer, 6)).unwrap();
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let broker = broker();
    run(async {
        let consumer = Client::builder().socket(broker.socket()).connect_async().await.unwrap();
        let (waiting, subscription) = (consumer.clone(), consumer.subscription("s").wait(LONG));
        let late = tokio::spawn(async move { waiting.wait_for("late").await });
        let messages = tokio::spawn(subscription.open_async());
        tokio::time::sleep(SHORT).await;
        let mut producer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_producer_process_is_awaited_and_its_death_is_noticed"])
            .env(SOCKET, broker.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let late = late.await.unwrap().unwrap();
        let mut messages = messages.await.unwrap().unwrap();
        let message = messages.recv().await.unwrap();
        let end = tokio::spawn(async move { messages.recv().await });
        tokio::time::sleep(SHORT).await;
        assert!(!end.is_finished());
        producer.kill().unwrap();
        assert!(matches!(end.await.unwrap(), Err(Error::StreamEnded(_))));
        assert_eq!((first(&late), value(&message)), (5, 6));
        producer.wait().unwrap();
    });
}

#[test]
fn a_hundred_subscriptions_need_no_thread() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    run(async {
        let streams: Vec<_> = (0..100).map(|n| producer.stream(&format!("s{n}")).open().unwrap()).collect();
        let mut tasks = Vec::new();
        for number in 0..100 {
            // Not open_async: the test would count its threads for blocking calls.
            let messages = consumer.subscription(&format!("s{number}")).pollable().open().unwrap();
            let mut messages = messages.into_async().unwrap();
            tasks.push(tokio::spawn(async move {
                let numbers = [messages.recv().await.unwrap(), messages.recv().await.unwrap()];
                numbers.map(|message| value(&message))
            }));
        }
        let before = std::fs::read_dir("/proc/self/task").unwrap().count();
        tokio::time::sleep(SHORT).await;
        for round in 0..2 {
            for (number, stream) in (0..).zip(&streams) {
                stream.send(draft(&producer, 1000 * round + number)).unwrap();
            }
            tokio::time::sleep(SHORT).await;
        }
        for (number, task) in (0..).zip(tasks) {
            assert_eq!(task.await.unwrap(), [number, 1000 + number]);
        }
        // Concurrent tests start a few threads.
        let after = std::fs::read_dir("/proc/self/task").unwrap().count();
        assert!(after < before + 50, "{before} threads before, {after} after");
    });
}

#[test]
fn a_future_that_is_dropped_loses_no_message() {
    const COUNT: u64 = 500;
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let stream = producer.stream("s").capacity(8).open().unwrap();
    run(async {
        let mut messages = subscribe(&consumer, "s").await;
        let sender = std::thread::spawn(move || {
            for number in 0..COUNT {
                stream.send(draft(&producer, number)).unwrap();
                if number.is_multiple_of(7) {
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
        });
        let (mut expected, mut dropped) = (0, 0u64);
        while expected < COUNT {
            match timeout(Duration::from_micros(100 * (dropped % 3)), messages.recv()).await {
                Ok(message) => {
                    let message = message.unwrap();
                    assert_eq!((value(&message), message.sequence(), message.lost()), (expected, expected, 0));
                    expected += 1;
                }
                Err(_) => dropped += 1,
            }
            // A future that is polled once and dropped.
            let mut once = pin!(messages.recv());
            if let Poll::Ready(message) = poll_fn(|cx| Poll::Ready(once.as_mut().poll(cx))).await {
                let Ok(message) = message else { break };
                assert_eq!(value(&message), expected);
                expected += 1;
            }
        }
        assert_eq!(expected, COUNT);
        sender.join().unwrap();
    });
}

#[test]
fn a_subscription_whose_descriptor_hung_up_still_sleeps() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    run(async {
        let stream = producer.stream("s").open().unwrap();
        let mut messages = subscribe(&consumer, "s").await;
        // The producer has not fetched its end of the wake descriptor, and without the daemon it never will.
        drop(broker);
        assert!(timeout(10 * SHORT, messages.recv()).await.is_err());
        // The task polls again after a while, but not at every turn of the runtime.
        let mut asleep = false;
        // A poll may be due at some of these turns, but not at all of them.
        for _ in 0..10_000 {
            if asleep {
                break;
            }
            let wakes = Arc::new(Wakes::default());
            assert!(pin!(messages.recv()).poll(&mut Context::from_waker(&wakes.clone().into())).is_pending());
            tokio::task::yield_now().await;
            asleep |= wakes.0.load(Ordering::Relaxed) == 0;
        }
        assert!(asleep, "it looks again and again");
        drop(stream);
    });
}

#[test]
fn a_subscription_goes_back_and_forth() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let stream = producer.stream("s").capacity(8).open().unwrap();
    for number in 0..4 {
        stream.send(draft(&producer, number)).unwrap();
    }
    let unpollable = consumer.subscribe("s").unwrap();
    let mut messages = consumer.subscription("s").start_at(Start::Oldest).pollable().open().unwrap();
    assert_eq!(value(&messages.recv().unwrap()), 0);
    let mut messages = run(async {
        assert!(matches!(unpollable.into_async(), Err(Error::Argument(_))));
        let mut messages = messages.into_async().unwrap();
        assert_eq!(value(&messages.recv().await.unwrap()), 1);
        messages.into_sync()
    });
    assert_eq!(value(&messages.recv().unwrap()), 2);
    // Waits in another runtime.
    run(async {
        let mut messages = messages.into_async().unwrap();
        assert_eq!(value(&messages.recv().await.unwrap()), 3);
        let missing = consumer.subscription("nothing").open_async().await;
        assert!(missing.unwrap_err().is_not_found());
    });
}

#[test]
fn a_name_is_awaited_that_another_client_publishes_later() {
    let broker = broker();
    let producer = client(&broker);
    run(async {
        let consumer = Client::builder().socket(broker.socket()).connect_async().await.unwrap();
        let waiting = consumer.clone();
        let got = tokio::spawn(async move { waiting.wait_for("late").await });
        tokio::time::sleep(SHORT).await;
        assert!(!got.is_finished());
        let version = draft(&producer, 5).publish("late").unwrap();
        let lease = got.await.unwrap().unwrap();
        assert_eq!((first(&lease), lease.version()), (5, version));

        // The asynchronous client dereferences to the other methods of the client.
        assert!(consumer.exists("late").unwrap());
        assert!(matches!(consumer.wait_for("").await, Err(Error::Name { .. })));
    });
}

#[test]
fn every_new_value_wakes_and_a_deletion_does_not() {
    let broker = broker();
    let producer = client(&broker);
    let consumer = client(&broker).into_async();
    run(async {
        let seen = draft(&producer, 0).publish("n").unwrap();
        let waiting = consumer.clone();
        let mut got = tokio::spawn(async move { first(&waiting.wait_newer("n", seen).await.unwrap()) });
        tokio::time::sleep(SHORT).await;
        assert!(producer.delete("n").unwrap());
        assert!(timeout(5 * SHORT, &mut got).await.is_err(), "a deletion is no value");
        draft(&producer, 1).publish("n").unwrap();
        assert_eq!(got.await.unwrap(), 1);

        // Another client takes the name over during the wait: another owner, another bell.
        let seen = consumer.get("n").unwrap().version();
        let waiting = consumer.clone();
        let got = tokio::spawn(async move { first(&waiting.wait_newer("n", seen).await.unwrap()) });
        tokio::time::sleep(SHORT).await;
        draft(&client(&broker), 2).publish("n").unwrap();
        assert_eq!(got.await.unwrap(), 2);

        let dataset = producer.dataset().add("part", draft(&producer, 3)).unwrap();
        dataset.publish("set").unwrap();
        assert!(matches!(consumer.wait_for("set").await, Err(Error::Kind { .. })));
        assert!(consumer.wait_value("set", Version::NONE).await.unwrap().as_dataset().is_some());
    });
}

#[test]
fn two_clients_answer_each_other() {
    // More rounds than there would be time for if every wait timed out.
    const ROUNDS: u64 = 1000;
    let broker = broker();
    let ask = client(&broker).into_async();
    let answer = client(&broker).into_async();
    run(async {
        let server = tokio::spawn(async move {
            let mut seen = Version::NONE;
            for _ in 0..ROUNDS {
                let question = answer.wait_newer("question", seen).await.unwrap();
                seen = question.version();
                draft(&answer, first(&question) + 1).publish("answer").unwrap();
            }
        });
        let mut seen = Version::NONE;
        for number in 0..ROUNDS {
            draft(&ask, 10 * number).publish("question").unwrap();
            let answer = ask.wait_newer("answer", seen).await.unwrap();
            seen = answer.version();
            assert_eq!(first(&answer), 10 * number + 1);
        }
        server.await.unwrap();
    });
}

#[test]
fn many_waits_share_one_thread_which_ends_with_its_client() {
    let broker = broker();
    let producers: Vec<Client> = (0..3).map(|_| client(&broker)).collect();
    let consumer: AsyncClient = client(&broker).into_async();
    let clone = consumer.clone();
    run(async {
        let seen = Cell::new(0);
        let waits = join_all((0..300).map(async |n| {
            let mut version = Version::NONE;
            for round in 0..2 {
                let lease = consumer.wait_newer(&format!("n{n}"), version).await.unwrap();
                version = lease.version();
                assert_eq!(first(&lease), 1000 * round + n);
                seen.set(seen.get() + 1);
            }
        }));
        let publish = async {
            for round in 0..2 {
                tokio::time::sleep(SHORT).await;
                // A new thread sets its own name, so the name appears only after the thread has started.
                let started = Instant::now();
                while threads("tensorlend-wait") == 0 {
                    assert!(started.elapsed() < Duration::from_mins(5), "no thread waits");
                    tokio::time::sleep(SHORT).await;
                }
                // Each test that waits for names has one or two such threads while it runs, and there are few such
                // tests.
                let threads = threads("tensorlend-wait");
                assert!(threads < 20, "{threads} threads");
                for n in 0..300 {
                    draft(&producers[n as usize % 3], 1000 * round + n).publish(&format!("n{n}")).unwrap();
                }
                while seen.get() < 300 * (round + 1) {
                    tokio::time::sleep(SHORT).await;
                }
            }
        };
        join(waits, publish).await;
    });
    drop(clone);
    assert_eq!(producers[0].stat().unwrap().clients, 4);
    drop(consumer);
    // The session ends shortly after the thread.
    run(async {
        while producers[0].stat().unwrap().clients != 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn waits_that_are_given_up_harm_nobody() {
    let broker = broker();
    let producer = client(&broker);
    let consumer = client(&broker).into_async();
    run(async {
        for _ in 0..200 {
            let never = pin!(consumer.wait_for("never"));
            let soon = pin!(tokio::task::yield_now());
            select(never, soon).await;
        }
        assert!(timeout(SHORT, consumer.wait_for("never")).await.is_err());
        draft(&producer, 9).publish("never").unwrap();
        assert_eq!(first(&consumer.wait_for("never").await.unwrap()), 9);
    });
    let consumer = consumer.into_sync();
    assert_eq!(first(&consumer.wait_for("never", None).unwrap()), 9);
}

#[test]
fn every_wait_learns_that_the_daemon_is_gone() {
    let broker = broker();
    let consumer = client(&broker).into_async();
    drop(broker);
    run(async {
        let waits = join_all(["a", "b", "c"].map(|name| consumer.wait_for(name))).await;
        assert!(waits.into_iter().all(|wait| wait.unwrap_err().is_disconnected()));
    });
}
