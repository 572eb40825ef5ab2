use super::*;

fn accounts(pool: u64, sheets: u64, uid_bytes: u64, share: bool) -> Accounts {
    Accounts::new(&Settings {
        pool_bytes_max: pool,
        sheet_bytes_max: sheets,
        descriptors_max: 1000,
        uid_bytes_max: uid_bytes,
        uid_sessions_max: 1,
        uid_share: share,
        ..crate::core::tests::world::settings()
    })
}

fn refused(charge: Result<Charge, Refusal>) -> (LimitKind, String) {
    match charge {
        Err(Refusal::Limit { kind, setting, .. }) => (kind, setting),
        other => panic!("{other:?}"),
    }
}

fn full(charge: Result<Charge, Refusal>) -> LimitKind {
    refused(charge).0
}

#[test]
fn limits_name_their_setting_and_charges_come_back() {
    let mut accounts = accounts(u64::MAX, 50, 100, false);
    accounts.open(1, "lab", "namespace.lab.bytes_max", 120);
    let a = accounts.charge(Some(7), 1, Kind::Segment, 90).unwrap();
    assert_eq!(refused(accounts.charge(Some(7), 1, Kind::Segment, 11)), (LimitKind::UserBytes, "uid.bytes_max".into()));
    assert_eq!(
        refused(accounts.charge(Some(8), 1, Kind::Segment, 31)),
        (LimitKind::NamespaceBytes, "namespace.lab.bytes_max".into())
    );
    assert_eq!(
        refused(accounts.charge(Some(8), 1, Kind::Segment, u64::MAX)),
        (LimitKind::NamespaceBytes, "namespace.lab.bytes_max".into())
    );
    let b = accounts.charge(None, 1, Kind::Sheet, 30).unwrap();
    accounts.refund(a);
    assert_eq!(
        refused(accounts.charge(Some(8), 1, Kind::Sheet, 21)),
        (LimitKind::SheetBytes, "pool.sheet_bytes_max".into())
    );
    accounts.refund(b);
    assert!(accounts.begin_session(7) && !accounts.begin_session(7));
    assert_eq!(accounts.users().held_by(7).descriptors, 6);
    accounts.end_session(7);
    accounts.end_session(7);
    accounts.close(1);
    assert!(accounts.is_empty());
}

#[test]
fn nobody_takes_what_the_next_one_needs() {
    let mut accounts = accounts(1200, 1200, u64::MAX, true);
    accounts.open(1, "lab", "namespace.lab.bytes_max", u64::MAX);
    let mut charges = vec![accounts.charge(Some(7), 1, Kind::Segment, 600).unwrap()];
    assert_eq!(full(accounts.charge(Some(7), 1, Kind::Segment, 1)), LimitKind::PoolShare);
    assert_eq!(full(accounts.charge(Some(8), 1, Kind::Segment, 201)), LimitKind::PoolShare);
    charges.push(accounts.charge(Some(8), 1, Kind::Segment, 200).unwrap());
    charges.push(accounts.charge(Some(9), 1, Kind::Segment, 100).unwrap());
    // Sheets are another stock. Its smallest share is the amount that a first client needs.
    charges.push(accounts.charge(Some(9), 1, Kind::Sheet, 600).unwrap());
    charges.push(accounts.charge(Some(7), 1, Kind::Sheet, 500).unwrap());
    // The superuser has no share, and its holding reduces the shares of others.
    charges.push(accounts.charge(Some(SUPERUSER), 1, Kind::Segment, 290).unwrap());
    assert_eq!(full(accounts.charge(Some(10), 1, Kind::Segment, 2)), LimitKind::PoolShare);
    charges.push(accounts.charge(Some(10), 1, Kind::Segment, 1).unwrap());
    for charge in charges {
        accounts.refund(charge);
    }
    accounts.close(1);
}

#[test]
fn descriptors_are_a_stock_too() {
    let mut accounts = accounts(u64::MAX, u64::MAX, u64::MAX, true);
    accounts.open(1, "lab", "namespace.lab.bytes_max", u64::MAX);
    let mut charges = Vec::new();
    let met = loop {
        match accounts.charge(Some(7), 1, Kind::Wake, 0) {
            Ok(charge) => charges.push(charge),
            refused => break full(refused),
        }
    };
    assert_eq!((charges.len(), met), (500, LimitKind::DescriptorShare));
    assert!(!accounts.begin_session(7), "no descriptor for its session");
    assert!(accounts.begin_session(8), "but for another's");
    accounts.end_session(7);
    accounts.end_session(8);
    for charge in charges {
        accounts.refund(charge);
    }
    accounts.close(1);
}

#[test]
fn what_leases_keep_counts_where_they_are_held() {
    let mut accounts = accounts(u64::MAX, u64::MAX, 100, false);
    accounts.open(1, "lab", "namespace.lab.bytes_max", u64::MAX);
    let a = accounts.charge(Some(7), 1, Kind::Segment, 100).unwrap();
    accounts.move_charges(BTreeMap::from([(7, Moved { keeps: 0, kept: 40 }), (8, Moved { keeps: 40, kept: 0 })]));
    let b = accounts.charge(Some(7), 1, Kind::Segment, 40).unwrap();
    assert_eq!(full(accounts.charge(Some(8), 1, Kind::Segment, 61)), LimitKind::UserBytes);
    accounts.move_charges(BTreeMap::new());
    assert_eq!(full(accounts.charge(Some(7), 1, Kind::Segment, 1)), LimitKind::UserBytes);
    accounts.refund(a);
    accounts.refund(b);
    accounts.close(1);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "a charge is refunded, not dropped")]
fn a_charge_that_is_lost_is_noticed() {
    let mut accounts = accounts(100, 100, 100, false);
    accounts.open(1, "lab", "namespace.lab.bytes_max", 120);
    drop(accounts.charge(Some(7), 1, Kind::Segment, 90).unwrap());
}

/// A refusal says what is in use, what was requested and what the limit is, and is true also for a request above the limit.
#[test]
fn a_refusal_has_the_use_the_request_and_the_limit() {
    let mut accounts = accounts(100 << 20, u64::MAX, u64::MAX, false);
    accounts.open(1, "lab", "namespace.lab.bytes_max", 64 << 20);
    let charge = accounts.charge(Some(7), 1, Kind::Segment, 5 << 18).unwrap();
    let refusal = accounts.charge(Some(7), 1, Kind::Segment, 12_000_000_000_000).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the memory of namespace \"lab\" would pass its limit of 64 MiB (1.3 MiB in use, 10.9 TiB more requested): raise \
         namespace.lab.bytes_max in the daemon's configuration, delete values, or request less"
    );
    accounts.refund(charge);
    accounts.close(1);
}
