//! Copies of values that a reader may write to, and drafts whose memory stays in place.

use tensorlend::{Client, DType};
use tensorlend_daemon::Embedded;

type Tested = Result<(), Box<dyn std::error::Error>>;

fn broker() -> Result<(Embedded, Client), Box<dyn std::error::Error>> {
    let broker = tensorlend_daemon::embedded()?;
    let client = Client::builder().socket(broker.socket()).connect()?;
    Ok((broker, client))
}

#[test]
fn what_is_written_to_a_copy_on_write_stays_here() -> Tested {
    let (broker, producer) = broker()?;
    let reader = Client::builder().socket(broker.socket()).connect()?;
    // Larger than a page, and not at the start of its segment.
    producer.put("before", &[7u8; 5000])?;
    producer.put("numbers", &(0..100_000u32).collect::<Vec<_>>())?;

    let mut mine = reader.get("numbers")?.copy_on_write(&reader)?;
    let at = 4 * 50_000;
    assert_eq!(mine.bytes_mut(0)[at..at + 4], 50_000u32.to_le_bytes());
    mine.bytes_mut(0)[at..at + 4].copy_from_slice(&1u32.to_le_bytes());
    producer.put("numbers", &vec![0u32; 100_000])?;
    let seen: &[u32] = bytemuck::cast_slice(mine.bytes_mut(0));
    assert!(seen.iter().enumerate().all(|(i, &n)| n == if i == 50_000 { 1 } else { i as u32 }));
    let shared = mine.value().as_tensor().unwrap().as_slice::<u32>()?;
    assert_eq!(shared[50_000], 50_000, "what everybody sees has not changed");

    // The lease ends with the copy.
    assert_eq!(reader.instruments().leased()?, 400_000);
    drop(mine);
    assert_eq!(reader.instruments().leased()?, 0);
    Ok(())
}

#[test]
fn a_dataset_is_copied_on_write_member_by_member() -> Tested {
    let (_broker, client) = broker()?;
    let mut image = client.create(DType::U8, &[64, 64])?;
    image.bytes_mut().fill(1);
    let mut depth = client.create(DType::F32, &[300_000])?;
    depth.as_mut_slice::<f32>()?.fill(2.0);
    let empty = client.create(DType::F32, &[0])?;
    client.dataset().add("image", image)?.add("depth", depth)?.add("empty", empty)?.publish("frame")?;

    let mut mine = client.get_value("frame")?.copy_on_write(&client)?;
    mine.bytes_mut(0).fill(9);
    assert_eq!(mine.bytes_mut(1)[..4], 2f32.to_le_bytes());
    assert!(mine.bytes_mut(2).is_empty());
    let frame = client.get_dataset("frame")?;
    assert!(frame.get("image").unwrap().bytes().iter().all(|&b| b == 1));
    Ok(())
}

#[test]
fn a_lease_of_another_client_is_refused() -> Tested {
    let (broker, client) = broker()?;
    let other = Client::builder().socket(broker.socket()).connect()?;
    client.put("numbers", &[1u8])?;
    let refused = client.get("numbers")?.copy_on_write(&other).unwrap_err();
    assert!(refused.to_string().contains("another client"), "{refused}");
    Ok(())
}

#[test]
fn a_pinned_draft_keeps_its_place_whatever_becomes_of_its_name() -> Tested {
    let (_broker, client) = broker()?;
    let mut draft = client.create(DType::U8, &[100_000])?;
    draft.bytes_mut().fill(5);
    let address = draft.bytes_mut().as_ptr().addr();
    let pin = draft.pin()?;
    draft.publish("page")?;
    client.delete("page")?;
    // Reuses every free slot several times.
    let place = |client: &Client| -> Result<usize, tensorlend::Error> {
        let mut draft = client.create(DType::U8, &[100_000])?;
        let at = draft.bytes_mut().as_ptr().addr();
        draft.publish("other")?;
        Ok(at)
    };
    for _ in 0..500 {
        assert_ne!(place(&client)?, address);
    }
    drop(pin);
    // Without the pin the slot is reused, as one of many.
    for _ in 0..500 {
        place(&client)?;
    }
    let mut many: Vec<_> = (0..100).map(|_| client.create(DType::U8, &[100_000])).collect::<Result<_, _>>()?;
    assert!(many.iter_mut().any(|draft| draft.bytes_mut().as_ptr().addr() == address));
    Ok(())
}

/// Publishes or drops a pinned draft by `end`, and returns true if its bytes are reused while it is pinned.
#[track_caller]
fn a_pin_outlives(end: impl FnOnce(&Client, tensorlend::Draft)) -> Tested {
    let (_broker, client) = broker()?;
    let mut draft = client.create(DType::U8, &[100_000])?;
    let address = draft.bytes_mut().as_ptr().addr();
    let pin = draft.pin()?;
    end(&client, draft);
    let is_reused = || -> Result<bool, tensorlend::Error> {
        let create = |_| client.create(DType::U8, &[100_000]);
        let mut many: Vec<_> = (0..100).map(create).collect::<Result<_, _>>()?;
        let found = many.iter_mut().any(|draft| draft.bytes_mut().as_ptr().addr() == address);
        // Publishes them: otherwise nothing would be retired and reclaimed.
        many.into_iter().try_for_each(|draft| draft.publish("other").map(drop))?;
        Ok(found)
    };
    for _ in 0..10 {
        assert!(!is_reused()?, "memory was reused beneath a pin");
    }
    drop(pin);
    let reused = (0..20).map(|_| is_reused()).collect::<Result<Vec<_>, _>>()?;
    assert!(reused.contains(&true), "memory did not come back after the pin was gone");
    Ok(())
}

#[test]
fn a_pinned_draft_that_is_dropped_keeps_its_place() -> Tested {
    a_pin_outlives(|_, draft| drop(draft))
}

#[test]
fn a_pinned_draft_that_could_not_be_published_keeps_its_place() -> Tested {
    a_pin_outlives(|_, draft| assert!(draft.publish("").is_err()))
}

#[test]
fn a_pinned_member_of_a_dataset_keeps_its_place() -> Tested {
    a_pin_outlives(|client, draft| {
        let other = client.create(DType::U8, &[10]).unwrap();
        let dataset = client.dataset().add("other", other).unwrap().add("page", draft).unwrap();
        dataset.publish("both").unwrap();
        assert!(client.delete("both").unwrap());
    })
}
