//! Rows for publishing, getting and looking up names in one process. The daemon receives no requests, and registers new
//! names asynchronously.

use std::hint::black_box;
use std::rc::Rc;

use tensorlend::{Client, DType, Draft};
use tensorlend_baselines::{BaselineError, Meter, floors, prepared, repeated};

use super::race::Group;
use super::setting::{FLOOR, OURS, Setting, entry};

/// Number of names between which a reader alternates.
const NAMES: usize = 1000;
const NAMES_MANY: usize = 10_000;

/// Maximum number of drafts in a batch. All of them are prepared before the clock starts.
const DRAFTS_MAX: u64 = 256;

/// Size of a value in bytes. The cost of a name does not depend on this size.
const VALUE_BYTES: u64 = 64;

/// Name of the floor with which leasing and publishing are compared.
const FENCE: &str = "store_fence_look";

pub fn groups(setting: &Setting) -> Vec<Group> {
    let boxed = |make: fn(&Setting) -> Result<Box<dyn Meter>, BaselineError>| {
        let setting = setting.clone();
        move || make(&setting)
    };
    let floor = || entry(FENCE, FLOOR, None, || Ok(floors::store_fence_look()));
    let mut entries = vec![
        floor(),
        entry("get_name", OURS, Some(FENCE), boxed(|setting| get(setting, NAMES))),
        entry("exists", OURS, Some(FENCE), boxed(exists)),
        entry("list_len", OURS, Some(FENCE), boxed(list_len)),
        entry("publish_overwrite", OURS, Some(FENCE), boxed(publish_overwrite)).at_most(DRAFTS_MAX),
        entry("publish_new", OURS, Some(FENCE), boxed(publish_new)).at_most(DRAFTS_MAX),
    ];
    if !setting.quick {
        entries.insert(2, entry("get_name_10000", OURS, Some(FENCE), boxed(|setting| get(setting, NAMES_MANY))));
    }
    let sizes: &[usize] = if setting.quick { &[64, 1 << 20] } else { &[64, 64 << 10, 1 << 20, 16 << 20] };
    let drafts = sizes.iter().map(|&bytes| {
        let setting = setting.clone();
        entry("draft_create_drop", OURS, None, move || create_drop(&setting, bytes as u64)).sized(bytes)
    });
    vec![Group { doing: "names", entries }, Group { doing: "drafts", entries: drafts.collect() }]
}

/// A client, and a prefix for the names that it publishes.
pub struct Desk {
    pub client: Client,
    folder: String,
}

impl Desk {
    pub fn open(setting: &Setting, what: &str) -> Result<Self, BaselineError> {
        let client = Client::builder().socket(&setting.socket).label("bench").connect()?;
        Ok(Self { client, folder: format!("bench/{}/{what}", std::process::id()) })
    }

    pub fn name(&self, name: impl std::fmt::Display) -> String {
        format!("{}/{name}", self.folder)
    }

    fn draft(&self) -> Result<Draft, BaselineError> {
        Ok(self.client.create(DType::U8, &[VALUE_BYTES])?)
    }
}

impl Drop for Desk {
    /// Deletes the published values, because the daemon may outlive the benchmark.
    fn drop(&mut self) {
        for info in self.client.list(&format!("{}/*", self.folder)).into_iter().flatten() {
            let _ = self.client.delete(&info.name);
        }
        let _ = self.client.clear(&self.folder);
    }
}

/// A reader of names that another client owns. The reader visits the names in an order that defeats
/// the prefetcher.
struct Reader {
    client: Client,
    names: Vec<String>,
    next: usize,
    /// The owner of the names, which must stay connected.
    _desk: Desk,
}

/// Step from one name to the next. The step is coprime to the numbers of names, so that the reader
/// visits every name.
const STRIDE: usize = 7919;

impl Reader {
    fn new(setting: &Setting, count: usize, what: &str) -> Result<Self, BaselineError> {
        let desk = Desk::open(setting, what)?;
        let names: Vec<String> = (0..count).map(|number| desk.name(number)).collect();
        for (name, number) in names.iter().zip(0_u64..) {
            desk.client.put(name, &[number; 8])?;
        }
        let client = Client::builder().socket(&setting.socket).label("bench").connect()?;
        Ok(Self { client, names, next: 0, _desk: desk })
    }

    fn turn(&mut self) -> &str {
        self.next = (self.next + STRIDE) % self.names.len();
        &self.names[self.next]
    }
}

fn get(setting: &Setting, names: usize) -> Result<Box<dyn Meter>, BaselineError> {
    let mut reader = Reader::new(setting, names, &format!("get{names}"))?;
    Ok(Box::new(repeated(move || {
        reader.turn();
        black_box(reader.client.get(&reader.names[reader.next])?);
        Ok(())
    })))
}

fn exists(setting: &Setting) -> Result<Box<dyn Meter>, BaselineError> {
    let mut reader = Reader::new(setting, NAMES, "exists")?;
    Ok(Box::new(repeated(move || {
        reader.turn();
        black_box(reader.client.exists(&reader.names[reader.next])?);
        Ok(())
    })))
}

fn list_len(setting: &Setting) -> Result<Box<dyn Meter>, BaselineError> {
    let desk = Desk::open(setting, "list")?;
    let list = desk.folder.clone();
    for _ in 0..8 {
        desk.client.append(&list, desk.draft()?)?;
    }
    Ok(Box::new(repeated(move || {
        black_box(desk.client.length(&list));
        Ok(())
    })))
}

fn drafts(desk: &Desk, count: u64) -> Result<Vec<Draft>, BaselineError> {
    (0..count).map(|_| desk.draft()).collect()
}

fn publish_overwrite(setting: &Setting) -> Result<Box<dyn Meter>, BaselineError> {
    let desk = Rc::new(Desk::open(setting, "overwrite")?);
    let name = desk.name("value");
    desk.draft()?.publish(&name)?;
    let ready = move |count| drafts(&desk, count);
    Ok(Box::new(prepared(ready, move |draft: Draft| Ok(draft.publish(&name)?), |_| Ok(()))))
}

fn publish_new(setting: &Setting) -> Result<Box<dyn Meter>, BaselineError> {
    let desk = Rc::new(Desk::open(setting, "new")?);
    let (maker, clearer) = (desk.clone(), desk);
    let mut made = 0_u64;
    let ready = move |count| {
        let first = made;
        made += count;
        Ok(drafts(&maker, count)?.into_iter().zip((first..made).map(|number| maker.name(number))).collect())
    };
    let publish = |(draft, name): (Draft, String)| {
        draft.publish(&name)?;
        Ok(name)
    };
    let clear = move |names: Vec<String>| {
        for name in names {
            clearer.client.delete(&name)?;
        }
        Ok(())
    };
    Ok(Box::new(prepared(ready, publish, clear)))
}

fn create_drop(setting: &Setting, bytes: u64) -> Result<Box<dyn Meter>, BaselineError> {
    let desk = Desk::open(setting, "drafts")?;
    Ok(Box::new(repeated(move || {
        black_box(desk.client.create(DType::U8, &[bytes])?);
        Ok(())
    })))
}
