//! Decisions a second over one large pool in steady churn at 70% occupancy, by the index and by a plain scan on the
//! same trace, and the memory a node takes. `cargo run --release -p placer --example place_bench [nodes] [steps]`.
//!
//! Two traces: claims of GPUs with about their share of the host, and tight ones, whose CPUs, memory or pages often run
//! out before the GPUs, beside claims of whole nodes, of none, and for one hundredth of the nodes by label.

#[path = "../tests/place/fixture.rs"]
mod fixture;
#[path = "../tests/place/naive.rs"]
mod naive;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bench::figures::{Figure, Run, Sample};
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

/// A decision and its booking, of one core.
const GATE: f64 = 200_000.0;
const GOAL: f64 = 500_000.0;
/// Of the snapshot of the whole pool.
const MEMORY_MIB_MAX: f64 = 200.0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trace {
    Plain,
    Tight,
}

/// A xorshift generator (Marsaglia, 2003): the trace is the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn claim(&mut self, trace: Trace) -> Claim {
        let gpus = [1, 1, 1, 2, 2, 4, 4, 8][self.below(8) as usize];
        let mut claim = fixture::gpus(gpus);
        claim.cpu_millis -= 1_000 * self.below(8);
        claim.memory_bytes -= GIB * self.below(16);
        claim.model = (self.below(4) > 0).then(|| MODELS[self.below(2) as usize].to_owned());
        claim.capabilities = ["devices.limits".to_owned()].into();
        if self.below(8) == 0 {
            claim.selector = [("zone".to_owned(), format!("z{}", self.below(16)))].into();
        }
        if trace == Trace::Tight {
            self.tighten(&mut claim);
        }
        claim
    }

    fn tighten(&mut self, claim: &mut Claim) {
        claim.cpu_millis = u64::from(claim.gpus) * 1_000 * (4 + self.below(25));
        claim.memory_bytes = u64::from(claim.gpus) * GIB * (32 + self.below(193));
        match self.below(32) {
            0..4 => claim.hugepages_1gi = self.below(5),
            4..8 => claim.selector = [("rack".to_owned(), format!("r{}", self.below(100)))].into(),
            8..10 => claim.avoid = (0..3).map(|_| fixture::id(u128::from(1 + self.below(10_000)))).collect(),
            10..13 => claim.gpus = 0,
            13 => claim.gpu_memory_bytes_min = 81 * GIB,
            14 => claim.model = Some("l4".to_owned()),
            15 => claim.whole_node = true,
            _ => {}
        }
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
    view.labels.insert("rack".to_owned(), format!("r{}", number / 16 % 100));
    view.labels.insert("kubernetes.io/hostname".to_owned(), format!("host-{number}"));
    for at in 0..8 {
        view.labels.insert(format!("bc.dev/fact.{at}"), format!("v{}", number % (at + 1)));
    }
    view
}

/// One kind of step, timed by itself.
struct Times(Vec<Sample>, Duration);

impl Times {
    fn new() -> Self {
        Self(Vec::new(), Duration::ZERO)
    }

    fn of<T>(&mut self, what: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let given = what();
        let took = start.elapsed();
        self.1 += took;
        self.0.push(Sample { at: self.1, took });
        given
    }

    fn report(self, what: &str) -> Run {
        let run = Run::new(what, self.1, self.0);
        println!("  {run}");
        run
    }
}

/// Books until the pool is as full as wanted.
fn fill(snapshot: &mut Snapshot, draw: &mut Draw, trace: Trace, gpus: usize) -> (Vec<Booking>, usize) {
    let (mut booked, mut held) = (Vec::new(), 0);
    while held * 100 < gpus * OCCUPANCY_PERCENT {
        let Some(found) = snapshot.find(&draw.claim(trace), Policy::Pack) else { continue };
        snapshot.book(&found.booking).expect("what was just found can be booked");
        held += found.booking.atoms.len();
        booked.push(found.booking);
    }
    (booked, held)
}

/// Gives back at random until there is room under the wanted occupancy, then places one claim; again and again.
fn churn(
    snapshot: &mut Snapshot,
    naive: &mut naive::Naive,
    (policy, trace): (Policy, Trace),
    steps: usize,
    gpus: usize,
) -> anyhow::Result<()> {
    let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
    let (mut booked, mut held) = fill(snapshot, &mut draw, trace, gpus);
    for booking in &booked {
        naive.shift(booking, 1);
    }
    let name = match trace {
        Trace::Plain => policy.name().to_owned(),
        Trace::Tight => format!("{}, tight claims", policy.name()),
    };
    println!("{name}: pool at {held} of {gpus} GPUs, {} bookings", booked.len());
    let (mut decided, mut moved, mut scanned) = (Times::new(), Times::new(), Times::new());
    let mut refused = 0;
    for step in 0..steps {
        while held * 100 >= gpus * OCCUPANCY_PERCENT {
            let booking = booked.swap_remove(draw.below(booked.len() as u64) as usize);
            held -= booking.atoms.len();
            moved.of(|| snapshot.release(&booking)).expect("it was booked");
            naive.shift(&booking, -1);
        }
        let claim = draw.claim(trace);
        let found = decided.of(|| snapshot.find(&claim, policy));
        if step * NAIVE_DECISIONS / steps != (step + 1) * NAIVE_DECISIONS / steps {
            let expected = scanned.of(|| naive.find(&claim, policy));
            assert_eq!(found.as_ref().map(|found| found.score), expected.map(|best| best.score));
        }
        let Some(found) = found else {
            refused += 1;
            continue;
        };
        moved.of(|| snapshot.book(&found.booking)).expect("what was just found can be booked");
        naive.shift(&found.booking, 1);
        held += found.booking.atoms.len();
        booked.push(found.booking);
    }
    let decided = decided.report("decide, indexed");
    moved.report("book and release");
    let scanned = scanned.report("decide, plain scan");
    Figure::rate(format!("placement decisions in memory, {name}"), "/s", &[decided])
        .beside("plain scan", scanned.rate())
        .at_least(GATE, GOAL)
        .note(format!("{refused} of {steps} refused"))
        .say()?;
    for booking in booked {
        snapshot.release(&booking).expect("it was booked");
        naive.shift(&booking, -1);
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
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

    Figure::of(format!("placement: memory of {gpus} GPUs"), held as f64 / f64::from(1 << 20), "MiB")
        .at_most(MEMORY_MIB_MAX, MEMORY_MIB_MAX / 2.0)
        .say()?;

    let mut naive = naive::Naive::new((1..=nodes as u128).map(node));
    for trace in [Trace::Plain, Trace::Tight] {
        for policy in [Policy::Pack, Policy::Spread] {
            churn(&mut snapshot, &mut naive, (policy, trace), steps, gpus)?;
        }
    }
    // Classes and patterns that churn left behind count too.
    let held = HELD.load(Ordering::Relaxed) - before;
    println!(
        "{:.1} MiB after the churn, the plain scan's own copy included",
        held as f64 / f64::from(1 << 20)
    );
    let claim = fixture::gpus(16);
    let start = Instant::now();
    let refusal = snapshot.place(&claim, Policy::Pack).expect_err("no node has 16");
    println!("explaining a refusal over {} nodes took {:?}", refusal.nodes.len(), start.elapsed());
    for line in
        refusal.groups.iter().map(ToString::to_string).chain(refusal.hints.iter().map(ToString::to_string))
    {
        println!("  {line}");
    }
    Ok(())
}
