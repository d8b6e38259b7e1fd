//! Decisions a second over one large pool in steady churn at 70% occupancy, by the index and by a plain scan on the
//! same trace, and the memory a node takes. `cargo run --release -p placer --example place_bench [nodes] [steps]`.

#[path = "../tests/place/fixture.rs"]
mod fixture;
#[path = "../tests/place/naive.rs"]
mod naive;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use model::unit::GIB;
use placer::{Booking, Claim, NodeView, Policy, Snapshot};

/// Counts the bytes asked for and not given back; the allocator's own rounding comes on top.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged; only a counter is kept beside it.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above with the same layout, so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const GPUS_PER_NODE: u16 = 10;
/// Of the GPUs that are there, while the churn runs.
const OCCUPANCY_PERCENT: usize = 70;
/// The plain scan is slow enough that fewer decisions tell as much.
const NAIVE_DECISIONS: usize = 300;

/// A xorshift generator (Marsaglia, 2003): the trace is the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn claim(&mut self) -> Claim {
        let gpus = [1, 1, 1, 2, 2, 4, 4, 8][self.below(8) as usize];
        let mut claim = fixture::gpus(gpus);
        claim.cpu_millis -= 1_000 * self.below(8);
        claim.memory_bytes -= GIB * self.below(16);
        claim.model = (self.below(4) > 0).then(|| MODELS[self.below(2) as usize].to_owned());
        claim.capabilities = ["devices.limits".to_owned()].into();
        if self.below(8) == 0 {
            claim.selector = [("zone".to_owned(), format!("z{}", self.below(16)))].into();
        }
        claim
    }
}

const MODELS: [&str; 2] = ["h100-sxm-80gb", "a100-sxm-80gb"];

/// Five bridged pairs over two NUMA nodes, labelled as a real node would be.
fn node(number: u128) -> NodeView {
    let mut view = fixture::node(number, GPUS_PER_NODE, MODELS[usize::from(number.is_multiple_of(3))]);
    for device in &mut view.devices {
        device.island = Some(device.index / 2);
    }
    view.labels.insert("zone".to_owned(), format!("z{}", number % 16));
    view.labels.insert("kubernetes.io/hostname".to_owned(), format!("host-{number}"));
    for at in 0..8 {
        view.labels.insert(format!("bc.dev/fact.{at}"), format!("v{}", number % (at + 1)));
    }
    view
}

fn report(what: &str, mut times: Vec<Duration>) -> f64 {
    let total: Duration = times.iter().sum();
    let rate = times.len() as f64 / total.as_secs_f64();
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{what:<22} {rate:>12.0}/s   p50 {:?}   p99 {:?}   max {:?}", at(50), at(99), at(100));
    rate
}

/// Books until the pool is as full as wanted.
fn fill(snapshot: &mut Snapshot, draw: &mut Draw, gpus: usize) -> (Vec<Booking>, usize) {
    let (mut booked, mut held) = (Vec::new(), 0);
    while held * 100 < gpus * OCCUPANCY_PERCENT {
        let Some(found) = snapshot.find(&draw.claim(), Policy::Pack) else { continue };
        snapshot.book(&found.booking).expect("what was just found can be booked");
        held += found.booking.atoms.len();
        booked.push(found.booking);
    }
    (booked, held)
}

/// Gives back at random until there is room under the wanted occupancy, then places one claim; again and again.
fn churn(snapshot: &mut Snapshot, naive: &mut naive::Naive, policy: Policy, steps: usize, gpus: usize) {
    let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
    let (mut booked, mut held) = fill(snapshot, &mut draw, gpus);
    for booking in &booked {
        naive.shift(booking, 1);
    }
    println!("{} pool at {held} of {gpus} GPUs, {} bookings", policy.name(), booked.len());
    let (mut found_in, mut booked_in, mut naive_in) = (Vec::new(), Vec::new(), Vec::new());
    let mut refused = 0;
    for step in 0..steps {
        while held * 100 >= gpus * OCCUPANCY_PERCENT {
            let booking = booked.swap_remove(draw.below(booked.len() as u64) as usize);
            held -= booking.atoms.len();
            snapshot.release(&booking).expect("it was booked");
            naive.shift(&booking, -1);
        }
        let claim = draw.claim();
        let start = Instant::now();
        let found = snapshot.find(&claim, policy);
        found_in.push(start.elapsed());
        if step * NAIVE_DECISIONS / steps != (step + 1) * NAIVE_DECISIONS / steps {
            let start = Instant::now();
            let expected = naive.find(&claim, policy);
            naive_in.push(start.elapsed());
            assert_eq!(found.as_ref().map(|found| found.score), expected.map(|best| best.score));
        }
        let Some(found) = found else {
            refused += 1;
            continue;
        };
        let start = Instant::now();
        snapshot.book(&found.booking).expect("what was just found can be booked");
        booked_in.push(start.elapsed());
        naive.shift(&found.booking, 1);
        held += found.booking.atoms.len();
        booked.push(found.booking);
    }
    let indexed = report("  decide, indexed", found_in);
    report("  book", booked_in);
    let scanned = report("  decide, plain scan", naive_in);
    println!("  refused {refused}; the index decides {:.0} times as often as the scan", indexed / scanned);
    for booking in booked {
        snapshot.release(&booking).expect("it was booked");
        naive.shift(&booking, -1);
    }
}

fn main() {
    let argument = |at| std::env::args().nth(at).and_then(|text| text.parse().ok());
    let nodes: usize = argument(1).unwrap_or(10_000);
    let steps: usize = argument(2).unwrap_or(200_000);
    let gpus = nodes * usize::from(GPUS_PER_NODE);

    let before = HELD.load(Ordering::Relaxed);
    let mut snapshot = Snapshot::new();
    let start = Instant::now();
    for number in 1..=nodes as u128 {
        snapshot.upsert(node(number)).expect("a well-formed node");
    }
    let loaded = start.elapsed();
    let held = HELD.load(Ordering::Relaxed) - before;
    println!(
        "{nodes} nodes, {gpus} GPUs: loaded in {loaded:?}, {} bytes a node, {:.1} MiB in all",
        held / nodes,
        held as f64 / f64::from(1 << 20)
    );

    let mut naive = naive::Naive::new((1..=nodes as u128).map(node));
    for policy in [Policy::Pack, Policy::Spread] {
        churn(&mut snapshot, &mut naive, policy, steps, gpus);
    }
    let claim = fixture::gpus(16);
    let start = Instant::now();
    let refusal = snapshot.place(&claim, Policy::Pack).expect_err("no node has 16");
    println!("explaining a refusal over {} nodes took {:?}", refusal.nodes.len(), start.elapsed());
    for line in
        refusal.groups.iter().map(ToString::to_string).chain(refusal.hints.iter().map(ToString::to_string))
    {
        println!("  {line}");
    }
}
