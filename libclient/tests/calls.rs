//! Requests and servers, through the public API, with an embedded daemon.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tensorlend::{Call, Caller, Client, DType, Draft, Error, Result, Server, Value};
use tensorlend_daemon::Embedded;

const LONG: Option<Duration> = Some(Duration::from_mins(5));

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

fn number(value: &Value) -> u64 {
    let slice = value.as_tensor().unwrap().as_slice::<u64>().unwrap();
    assert!(slice.iter().all(|v| *v == slice[0]), "torn");
    slice[0]
}

/// Responds with each request's number plus `more`, until told to end.
fn add(client: &Client, more: u64, end: &AtomicBool) -> u64 {
    let mut server = client.serve("add").open().unwrap();
    let mut served = 0;
    while !end.load(Ordering::Relaxed) {
        match server.recv_timeout(Duration::from_millis(20)) {
            Ok(call) => {
                let answer = draft(client, number(call.value()) + more);
                call.respond(answer).unwrap();
                served += 1;
            }
            Err(error) => assert!(error.is_timeout(), "{error}"),
        }
    }
    served
}

/// Returns the names left of a service, except its servers' own entries.
fn lines(client: &Client) -> Vec<String> {
    let streams = client.streams("*").unwrap().into_iter().map(|s| s.name);
    streams.chain(client.lists("*").unwrap().into_iter().map(|l| l.name)).collect()
}

#[test]
fn a_caller_connects_before_its_first_request() {
    let broker = broker();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = client(&broker);
        let mut caller = client.caller("add").open().unwrap();
        assert!(caller.wait_server(Some(Duration::from_millis(1))).unwrap_err().is_timeout());
        assert!(!caller.has_server().unwrap());
        let server = scope.spawn(|| add(&self::client(&broker), 1, &end));
        caller.wait_server(LONG).unwrap();
        assert!(caller.has_server().unwrap());
        assert_eq!(number(&caller.call(draft(&client, 1), LONG).unwrap()), 2);
        end.store(true, Ordering::Relaxed);
        server.join().unwrap();
        assert!(!caller.has_server().unwrap());
    });
}

#[test]
fn many_callers_and_two_servers() {
    let broker = broker();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let servers: Vec<_> = (0..2)
            .map(|_| {
                let (broker, end) = (&broker, &end);
                scope.spawn(move || add(&client(broker), 1000, end))
            })
            .collect();
        let callers: Vec<_> = (0..8u64)
            .map(|n| {
                let broker = &broker;
                scope.spawn(move || {
                    let client = client(broker);
                    let mut caller = client.caller("add").open().unwrap();
                    for i in 0..200 {
                        let asked = n * 10_000_000 + i;
                        let answer = caller.call(draft(&client, asked), LONG).unwrap();
                        assert_eq!(number(&answer), asked + 1000);
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.join().unwrap();
        }
        end.store(true, Ordering::Relaxed);
        let served: u64 = servers.into_iter().map(|server| server.join().unwrap()).sum();
        assert_eq!(served, 1600);
    });
    let client = client(&broker);
    assert_eq!(lines(&client), Vec::<String>::new());
    assert!(client.list("*").unwrap().is_empty());
}

#[test]
fn a_caller_takes_the_server_with_the_fewest() {
    let broker = broker();
    let (serving, calling) = (client(&broker), client(&broker));
    let mut servers: Vec<Server> = (0..3).map(|_| serving.serve("s").open().unwrap()).collect();
    let mut callers: Vec<Caller> = Vec::new();
    for _ in 0..6 {
        let mut caller = calling.caller("s").open().unwrap();
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| caller.send(draft(&calling, 1), LONG).unwrap());
            while !sent.is_finished() {
                for server in &mut servers {
                    if let Some(call) = server.try_recv().unwrap() {
                        call.respond(draft(&serving, 2)).unwrap();
                    }
                }
            }
        });
        callers.push(caller);
    }
    assert_eq!(servers.iter().map(Server::callers).collect::<Vec<_>>(), [2, 2, 2]);
}

/// Responds with this server's number to every request, except to `held` ones, which it keeps.
fn number_of_server(client: &Client, server: &mut Server, number: u64, held: &mut Vec<Call>) {
    while let Some(call) = server.try_recv().unwrap() {
        if self::number(call.value()) == HELD {
            held.push(call);
        } else {
            call.respond(draft(client, number)).unwrap();
        }
    }
}

/// A request that gets no response.
const HELD: u64 = 99;

/// Returns the response to a caller's request while servers serve.
fn served_by(
    servers: &mut [Server],
    serving: &Client,
    held: &mut Vec<Call>,
    calling: &Client,
    caller: &mut Caller,
) -> u64 {
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| number(&caller.call(draft(calling, 1), LONG).unwrap()));
        while !answer.is_finished() {
            for (at, server) in servers.iter_mut().enumerate() {
                number_of_server(serving, server, at as u64, held);
            }
        }
        answer.join().unwrap()
    })
}

#[test]
fn a_caller_leaves_a_busy_server_for_an_idle_one_and_no_other() {
    let broker = broker();
    let (serving, calling) = (client(&broker), client(&broker));
    let mut servers: Vec<Server> = (0..3).map(|_| serving.serve("s").open().unwrap()).collect();
    let mut held = Vec::new();
    let mut callers: Vec<Caller> = (0..6).map(|_| calling.caller("s").open().unwrap()).collect();
    let mut homes = Vec::new();
    for caller in &mut callers {
        homes.push(served_by(&mut servers, &serving, &mut held, &calling, caller));
    }
    // All servers are idle at each request: every caller stays with its server.
    for (caller, home) in callers.iter_mut().zip(&homes) {
        assert_eq!(served_by(&mut servers, &serving, &mut held, &calling, caller), *home);
    }
    // One server becomes busy, and its other caller moves to another server; on a stalled machine, not at once.
    let busy = homes[0];
    let other = 1 + homes[1..].iter().position(|home| *home == busy).expect("each has two");
    callers[0].send(draft(&calling, HELD), LONG).unwrap();
    while held.is_empty() {
        number_of_server(&serving, &mut servers[busy as usize], busy, &mut held);
    }
    let mut now = busy;
    for _ in 0..1000 {
        now = served_by(&mut servers, &serving, &mut held, &calling, &mut callers[other]);
        if now != busy {
            break;
        }
    }
    assert_ne!(now, busy, "it stayed");
    for _ in 0..20 {
        assert_eq!(served_by(&mut servers, &serving, &mut held, &calling, &mut callers[other]), now);
    }
    // Callers of the other servers stay where they are.
    for (caller, home) in callers.iter_mut().zip(&homes).filter(|(_, home)| **home != busy) {
        assert_eq!(served_by(&mut servers, &serving, &mut held, &calling, caller), *home);
    }
    held.pop().unwrap().respond(draft(&serving, busy)).unwrap();
    assert_eq!(number(&callers[0].recv(LONG).1.unwrap()), busy);
    drop(callers);
    for (at, server) in servers.iter_mut().enumerate() {
        number_of_server(&serving, server, at as u64, &mut held);
        assert_eq!(server.callers(), 0);
    }
    drop(servers);
    assert_eq!(lines(&calling), Vec::<String>::new());
}

#[test]
fn answers_come_in_the_order_of_their_requests() {
    let broker = broker();
    let (serving, calling) = (client(&broker), client(&broker));
    let mut server = serving.serve("s").open().unwrap();
    let mut caller = calling.caller("s").capacity(16).open().unwrap();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            for n in 0..16 {
                assert_eq!(caller.send(draft(&calling, n), LONG).unwrap(), n);
            }
            let full = caller.send(draft(&calling, 16), LONG).unwrap_err();
            assert!(matches!(full, Error::Argument(_)), "{full}");
            let busy = caller.call(draft(&calling, 16), LONG).unwrap_err();
            assert!(busy.to_string().contains("16 requests"), "{busy}");
            for n in 0..16 {
                let (answered, answer) = caller.recv(LONG);
                assert_eq!(answered, n);
                match n {
                    3 => assert!(answer.unwrap_err().to_string().contains("no threes")),
                    _ => assert_eq!(number(&answer.unwrap()), n * 2),
                }
            }
            assert_eq!(caller.outstanding(), 0);
        });
        let mut calls: Vec<Call> = (0..16).map(|_| server.recv().unwrap()).collect();
        // The last request first, each from its own thread.
        while let Some(call) = calls.pop() {
            let serving = &serving;
            scope
                .spawn(move || match number(call.value()) {
                    3 => call.fail("no threes").unwrap(),
                    n => call.respond(draft(serving, n * 2)).unwrap(),
                })
                .join()
                .unwrap();
        }
        asking.join().unwrap();
    });
}

/// Serves one request in the test's way; returns the caller's result.
fn once(serve: impl FnOnce(&Client, Call) + Send) -> Result<Value> {
    let broker = broker();
    let (serving, calling) = (client(&broker), client(&broker));
    let mut server = serving.serve("s").open().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&serving, server.recv().unwrap()));
        calling.caller("s").open().unwrap().call(draft(&calling, 1), LONG)
    })
}

#[test]
fn a_caller_learns_why_there_is_no_answer() {
    let because = |result: Result<Value>| match result.unwrap_err() {
        Error::Answer { service, why } => {
            assert_eq!(service, "s");
            why
        }
        other => panic!("{other}"),
    };
    assert_eq!(
        because(once(|_, call| call.fail("the model has no input of that name").unwrap())),
        "the model has no input of that name"
    );
    assert_eq!(because(once(|_, call| drop(call))), "the server has dropped the request");
    assert_eq!(because(once(|_, call| call.fail("x".repeat(100_000)).unwrap())).len(), tensorlend::METADATA_MAX);
    let why = because(once(|client, call| assert!(call.respond(client.dataset()).is_err())));
    assert!(why.contains("no tensor"), "{why}");
    let other = broker();
    let stranger = client(&other);
    let why = because(once(|_, call| assert!(call.respond(draft(&stranger, 1)).is_err())));
    assert!(why.contains("another client"), "{why}");
}

#[test]
fn requests_and_answers_may_be_datasets() {
    let answer = once(|client, call| {
        assert_eq!(number(call.value()), 1);
        assert!(call.dataset().is_err());
        assert_eq!(call.tensor().unwrap().shape(), [64]);
        let answer = client.dataset().add("classes", draft(client, 5)).unwrap().metadata(b"two").unwrap();
        call.respond(answer).unwrap();
    });
    let answer = answer.unwrap();
    let answer = answer.as_dataset().unwrap();
    assert_eq!((answer.metadata(), answer.len()), (&b"two"[..], 1));
}

#[test]
fn a_call_waits_for_a_server() {
    let broker = broker();
    let (serving, calling) = (client(&broker), client(&broker));
    let mut caller = calling.caller("s").open().unwrap();
    let late = caller.call(draft(&calling, 1), Some(Duration::from_millis(20))).unwrap_err();
    assert!(late.is_timeout() && late.to_string().contains("a server of \"s\""), "{late}");
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| number(&caller.call(draft(&calling, 1), LONG).unwrap()));
        let mut server = serving.serve("s").open().unwrap();
        let call = server.recv().unwrap();
        call.respond(draft(&serving, 2)).unwrap();
        assert_eq!(asking.join().unwrap(), 2);
    });
}

#[test]
fn a_server_that_ends_is_another_ones_matter() {
    let broker = broker();
    let (serving, calling) = (client(&broker), client(&broker));
    let mut first = serving.serve("s").open().unwrap();
    let mut caller = calling.caller("s").open().unwrap();
    let mut caller = std::thread::scope(|scope| {
        let asking = scope.spawn(|| (caller.call(draft(&calling, 1), LONG), caller));
        // The call outlives its server: responding is then impossible, but not an error.
        let call = first.recv().unwrap();
        drop(first);
        let (gone, caller) = asking.join().unwrap();
        assert!(matches!(gone, Err(Error::ServerGone(_))), "{gone:?}");
        call.respond(draft(&serving, 2)).unwrap();
        caller
    });

    let made = AtomicU64::new(0);
    let mut second = serving.serve("s").open().unwrap();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            caller.call_again(LONG, |client| {
                made.fetch_add(1, Ordering::Relaxed);
                Ok(draft(client, 7))
            })
        });
        let call = second.recv().unwrap();
        let mut third = serving.serve("s").open().unwrap();
        drop((call, second));
        let call = loop {
            // A failure that the second server sent last is a response, too.
            if let Ok(call) = third.recv_timeout(Duration::from_millis(50)) {
                break Some(call);
            }
            if asking.is_finished() {
                break None;
            }
        };
        match call {
            Some(call) => {
                assert_eq!(number(call.value()), 7);
                call.respond(draft(&serving, 8)).unwrap();
                assert_eq!(number(&asking.join().unwrap().unwrap()), 8);
                assert_eq!(made.load(Ordering::Relaxed), 2);
            }
            None => assert!(matches!(asking.join().unwrap(), Err(Error::Answer { .. }))),
        }
    });
}

#[test]
fn one_that_hangs_is_given_up() {
    let broker = broker();
    let (serving, calling) = (client(&broker), client(&broker));
    let mut hung = serving.serve("s").open().unwrap();
    let mut caller = calling.caller("s").open().unwrap();
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            caller.send(draft(&calling, 1), LONG).unwrap();
            caller
        });
        let call = hung.recv().unwrap();
        let mut caller = opening.join().unwrap();
        let mut well = serving.serve("s").open().unwrap();
        let (_, late) = caller.recv(Some(Duration::from_millis(20)));
        assert!(late.unwrap_err().is_timeout());
        assert_eq!(caller.outstanding(), 1);
        caller.give_up();
        assert_eq!(caller.outstanding(), 0);
        let calling = &calling;
        let asking = scope.spawn(move || {
            assert_eq!(number(&caller.call(draft(calling, 3), LONG).unwrap()), 4);
            caller
        });
        let next = well.recv().unwrap();
        next.respond(draft(&serving, 4)).unwrap();
        let _caller = asking.join().unwrap();
        // The response is too late, so no caller receives it.
        call.respond(draft(&serving, 2)).unwrap();
        assert!(hung.try_recv().unwrap().is_none());
        assert_eq!((hung.callers(), well.callers()), (0, 1));
    });
}

#[test]
fn a_door_is_emptied_and_callers_come_in_all_the_same() {
    let broker = broker();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| add(&client(&broker), 1, &end));
        let calling = client(&broker);
        for n in 0..300 {
            let mut caller = calling.caller("add").open().unwrap();
            assert_eq!(number(&caller.call(draft(&calling, n), LONG).unwrap()), n + 1);
        }
        end.store(true, Ordering::Relaxed);
        assert_eq!(serving.join().unwrap(), 300);
        assert_eq!(lines(&calling), Vec::<String>::new());
    });
}

/// More requests than leases of one client.
#[test]
fn a_crowd_at_the_door_keeps_nobody_out() {
    let broker = broker();
    let (serving, calling, crowd) = (client(&broker), client(&broker), client(&broker));
    let mut server = serving.serve("s").open().unwrap();
    let door = calling.list("s/.server/*").unwrap()[0].name.replace(".server", ".door");
    for n in 0..5000u64 {
        let mut knock = crowd.create(DType::U64, &[1 + n % 2]).unwrap();
        knock.as_mut_slice::<u64>().unwrap().fill(n);
        crowd.append(&door, knock).unwrap();
    }
    std::thread::scope(|scope| {
        let asking =
            scope.spawn(|| number(&calling.caller("s").open().unwrap().call(draft(&calling, 1), LONG).unwrap()));
        let call = server.recv_timeout(LONG.unwrap()).unwrap();
        call.respond(draft(&serving, 2)).unwrap();
        assert_eq!(asking.join().unwrap(), 2);
    });
    assert!(server.callers() <= 1);
}

#[test]
fn arguments_that_cannot_be() {
    let broker = broker();
    let client = client(&broker);
    assert!(client.serve("").open().is_err());
    assert!(client.caller(&"s".repeat(250)).open().is_err());
    assert!(client.caller("s").capacity(0).open().is_err());
    assert!(client.caller("s").capacity(2000).open().is_err());
    let mut caller = client.caller("s").open().unwrap();
    assert!(matches!(caller.recv(LONG).1, Err(Error::Argument(_))));
    assert_eq!(caller.service(), "s");
}
