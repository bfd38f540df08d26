//! How close the store comes to what the machine can do. Prints ratios; both sides of each ratio
//! run interleaved, so neighbours disturb both, and medians are compared.
//!
//! `cargo bench -p downpour --bench store [-- apply|writers|readers]`

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use downpour::kernel::{Gradient, Level, step};
use downpour::optimizer::Optimizer;
use downpour::store::{Geometry, Store};

/// 168 MB of f32: far more than any cache.
const LEN: usize = 42_000_000;
const STRIPE: usize = 16 << 10;
const FRAGMENT: usize = 64 << 10;
const ROUNDS: usize = 7;

/// Elements that one side works on before the other has its turn: some milliseconds.
const TURN: usize = 64 * FRAGMENT;

fn main() {
    // `cargo test --all-targets` runs this too, without the flag: a gigabyte and a minute too much.
    if !std::env::args().any(|word| word == "--bench") {
        return println!("run it with cargo bench");
    }
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let wants = |name: &str| wanted.as_deref().is_none_or(|word| word == name);
    println!("level {}", Level::best().name());
    if wants("apply") {
        bench_apply();
    }
    if wants("writers") {
        bench_writers();
    }
    if wants("readers") {
        bench_readers();
    }
}

fn optimizer(name: &str) -> Optimizer {
    let numbers: &[(&str, f64)] = match name {
        "sgd" => &[("lr", 1e-6)],
        "adagrad" => &[("lr", 1e-6), ("eps", 1e-10), ("initial", 0.1)],
        "adam" => &[("lr", 1e-6), ("beta1", 0.9), ("beta2", 0.999), ("eps", 1e-8)],
        _ => unreachable!("no numbers for {name}"),
    };
    let numbers: BTreeMap<_, _> = numbers.iter().map(|&(name, n)| (name.to_owned(), n)).collect();
    Optimizer::compile(&[(name.to_owned(), numbers)], None).expect("the numbers are in bounds")
}

fn store(name: &str, len: usize, fragment_len: usize) -> Arc<Store> {
    let geometry = Geometry { len, stripe_len: STRIPE, fragment_len };
    let store = Store::new(geometry, optimizer(name)).expect("memory for the bench");
    store.load_plane(0, 0, &vec![1.0; len]).expect("nothing was applied yet");
    Arc::new(store)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn seconds(body: impl FnOnce()) -> f64 {
    let start = Instant::now();
    body();
    start.elapsed().as_secs_f64()
}

/// Bytes a second of parameters, state and gradient, once through the store, against a triad
/// `p -= lr * g` over plain vectors. Both take turns every few milliseconds.
fn bench_apply() {
    let gradient = vec![0.5_f32; LEN];
    let mut triad = Triad { values: vec![1.0; LEN], gradient: vec![0.5; LEN] };
    for (name, bytes) in [("sgd", 12.0), ("adagrad", 20.0), ("adam", 28.0)] {
        for fragment_len in [STRIPE, FRAGMENT] {
            let store = store(name, LEN, fragment_len);
            let (mut rates, mut ratios) = (Vec::new(), Vec::new());
            for _ in 0..=ROUNDS {
                let (limit, ours) = apply_in_turns(&store, &gradient, &mut triad);
                ratios.push(bytes / ours / (12.0 / limit));
                #[allow(clippy::cast_precision_loss)]
                rates.push(bytes * LEN as f64 / ours / 1e9);
            }
            // The first round pages everything in.
            let (rate, ratio) = (median(rates.split_off(1)), median(ratios.split_off(1)));
            println!(
                "apply {name:8} fragment {:3} KiB: {rate:5.1} GB/s, of a triad {ratio:.3}",
                fragment_len >> 8
            );
        }
    }
}

/// The limit's own vectors: sharing the gradient would leave it in the cache for the store.
struct Triad {
    values: Vec<f32>,
    gradient: Vec<f32>,
}

/// Seconds of the triad, and of the store, over the same elements.
fn apply_in_turns(store: &Store, gradient: &[f32], triad: &mut Triad) -> (f64, f64) {
    let per_turn = TURN / store.geometry().fragment_len;
    let fragments: Vec<_> = (0..store.fragments()).collect();
    let (mut limit, mut ours) = (0.0, 0.0);
    for turn in fragments.chunks(per_turn) {
        let range = |fragment| store.geometry().fragment_range(fragment);
        let whole = range(turn[0]).start..range(turn[turn.len() - 1]).end;
        limit += seconds(|| {
            let part = Gradient::F32(&triad.gradient[whole.clone()]);
            step(Level::best(), &mut triad.values[whole.clone()], part, 1e-6)
                .expect("equal lengths");
        });
        ours += seconds(|| {
            for &fragment in turn {
                let part = Gradient::F32(&gradient[range(fragment)]);
                store.apply(fragment, part, 1.0).expect("finite");
            }
        });
    }
    (limit, ours)
}

/// In place under one mutex a stripe: the fastest design that is safe, and blocks.
struct InPlace(Vec<Mutex<Vec<f32>>>);

impl InPlace {
    fn new(stripes: usize) -> Self {
        Self((0..stripes).map(|_| Mutex::new(vec![1.0; STRIPE])).collect())
    }

    fn apply(&self, stripe: usize, gradient: &[f32]) {
        let mut values = self.0[stripe].lock().expect("no panic");
        step(Level::best(), &mut values, Gradient::F32(gradient), 1e-6).expect("equal lengths");
    }

    fn read(&self, stripe: usize, target: &mut [f32]) {
        target.copy_from_slice(&self.0[stripe].lock().expect("no panic"));
    }
}

/// Writers sweep the whole store from different places; stripes a second.
fn bench_writers() {
    let stripes = LEN / STRIPE;
    let len = stripes * STRIPE;
    let gradient = vec![0.5_f32; len];
    let mutex = InPlace::new(stripes);
    for fragment_len in [STRIPE, FRAGMENT] {
        let ours = store("sgd", len, fragment_len);
        let per = fragment_len / STRIPE;
        for writers in [1, 2] {
            let mut ratios = Vec::new();
            for round in 0..=ROUNDS {
                let theirs = sweep(writers, stripes, |stripe| {
                    mutex.apply(stripe, &gradient[stripe * STRIPE..][..STRIPE]);
                });
                let mine = sweep(writers, stripes.div_ceil(per), |fragment| {
                    let part = &gradient[ours.geometry().fragment_range(fragment)];
                    ours.apply(fragment, Gradient::F32(part), 1.0).expect("finite");
                });
                if round > 0 {
                    ratios.push(theirs / mine);
                }
            }
            let ratio = median(ratios);
            println!(
                "push, {writers} writers, fragment {:3} KiB: published / mutex {ratio:.3}",
                fragment_len >> 8
            );
        }
    }
}

/// Seconds until `writers` threads have each visited every index once, from different starts.
fn sweep(writers: usize, count: usize, visit: impl Fn(usize) + Sync) -> f64 {
    let barrier = Barrier::new(writers + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|writer| {
                let (barrier, visit) = (&barrier, &visit);
                scope.spawn(move || {
                    barrier.wait();
                    for index in 0..count {
                        visit((index + writer * count / writers) % count);
                    }
                })
            })
            .collect();
        barrier.wait();
        seconds(|| threads.into_iter().for_each(|thread| thread.join().expect("no panic")))
    })
}

/// Two writers and two readers on one stripe: how long does a read take, one time in a thousand?
fn bench_readers() {
    let gradient = vec![0.5_f32; STRIPE];
    let ours = store("sgd", STRIPE, STRIPE);
    let mutex = InPlace::new(1);
    let (mut published, mut in_place) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        in_place.push(slow_reads(|| mutex.apply(0, &gradient), |target| mutex.read(0, target)));
        published.push(slow_reads(
            || drop(ours.apply(0, Gradient::F32(&gradient), 1.0)),
            |target| target.copy_from_slice(ours.pin(0).parameters()),
        ));
    }
    let (published, in_place) = (median(published), median(in_place));
    println!(
        "hot stripe read p99.9: {published:.2} us, mutex {in_place:.2} us, ratio {:.3}",
        published / in_place
    );
}

fn slow_reads(write: impl Fn() + Sync, read: impl Fn(&mut [f32]) + Sync) -> f64 {
    let stop = AtomicBool::new(false);
    let mut times = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    write();
                }
            });
        }
        let reader = || {
            let mut target = vec![0.0_f32; STRIPE];
            let mut times = Vec::with_capacity(1 << 20);
            while !stop.load(Ordering::Relaxed) {
                times.push(seconds(|| read(black_box(&mut target))) * 1e6);
            }
            times
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().expect("no panic")).concat()
    });
    times.sort_by(f64::total_cmp);
    times[times.len() * 999 / 1000]
}
