//! The slow twins: every part as a few lines of plain scalar arithmetic, and a store that is one
//! mutex around plain vectors. Read these to know what the fast ones must compute.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::collections::BTreeMap;
use std::sync::Mutex;

use downpour::kernel::{Gradient, Level};
use downpour::optimizer::{Optimizer, parts};
use downpour::store::{
    Accumulated, Admission, Applied, ApplyError, CloseError, Closed, Geometry, Store,
};

pub type Part = (String, BTreeMap<String, f64>);

pub fn part(name: &str, numbers: &[(&str, f64)]) -> Part {
    (name.to_owned(), numbers.iter().map(|&(name, value)| (name.to_owned(), value)).collect())
}

/// For every rule: alone, behind each other part, and behind many in two orders.
pub fn chains() -> Vec<Vec<Part>> {
    let usual_of = |(name, _, numbers): (&str, bool, Vec<&str>)| {
        part(name, &numbers.into_iter().map(|n| (n, usual(name, n))).collect::<Vec<_>>())
    };
    let of_kind = |rule| parts().filter(move |part| part.1 == rule).map(usual_of);
    let before: Vec<_> = of_kind(false).collect();
    let mut chains = Vec::new();
    for rule in of_kind(true) {
        chains.push(vec![rule.clone()]);
        chains.extend(before.iter().map(|part| vec![part.clone(), rule.clone()]));
        chains.push([before.clone(), vec![rule.clone()]].concat());
        let backward = before.iter().rev().chain(&before[..3]).cloned().collect();
        chains.push([backward, vec![rule]].concat());
    }
    chains.push(vec![part("momentum", &[("lr", 0.1), ("momentum", 0.5), ("nesterov", 0.0)])]);
    chains
}

fn usual(part: &str, number: &str) -> f64 {
    match (part, number) {
        ("trace", "decay") | (_, "momentum" | "beta1" | "gamma" | "beta") => 0.9,
        (_, "max") => 0.75,
        (_, "rate") => 0.01,
        (_, "over") => 5.0,
        (_, "by_samples") => 0.0,
        (_, "every" | "history") => 2.0,
        (_, "start" | "floor" | "initial") => 0.1,
        (_, "factor" | "power" | "records" | "strength") => 0.5,
        (_, "batch") => 3.0,
        (_, "lr") => 0.05,
        (_, "nesterov") => 1.0,
        (_, "beta2") => 0.999,
        (_, "eps") => 1e-8,
        (_, "decay") => 0.02,
        _ => panic!("give the new number {number} of {part} a usual value, and the part a twin"),
    }
}

pub fn compile(parts: &[Part], level: Level) -> Optimizer {
    Optimizer::compile(parts, Some(level)).expect("the chain is good")
}

pub fn initial_state(parts: &[Part]) -> Vec<f32> {
    parts.iter().flat_map(initial_of).collect()
}

fn initial_of((name, numbers): &Part) -> Vec<f32> {
    match name.as_str() {
        "momentum" | "trace" | "adaptive_delay_compensation" | "gap_aware" => vec![0.0],
        "adagrad" => vec![single(numbers["initial"])],
        "adam" | "adamw" => vec![0.0, 0.0],
        "fasgd" => vec![0.0, 0.0, single(numbers["initial"])],
        _ => vec![],
    }
}

#[allow(clippy::cast_possible_truncation)]
fn single(value: f64) -> f32 {
    value as f32
}

/// What is known of an update beside its elements.
#[derive(Clone, Copy, Debug)]
pub struct At {
    pub count: u64,
    pub staleness: u64,
    pub round_count: u64,
    pub samples_before: u64,
    pub samples: u64,
}

/// Where a parameter was: one version ago, and in the version that the gradient comes from.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    pub last: f32,
    pub base: f32,
}

fn small(count: u64) -> u32 {
    u32::try_from(count).expect("tests are short")
}

/// What the chain's factors make of the learning rate.
fn rate(parts: &[Part], at: At) -> f64 {
    let mut rate = 1.0;
    for (name, numbers) in parts {
        let by_samples = numbers.get("by_samples") == Some(&1.0);
        let [before, after] = if by_samples {
            [at.samples_before, at.samples_before + at.samples].map(small)
        } else {
            [at.count - 1, at.count].map(small)
        };
        let way = |count: u32| (f64::from(count) / numbers["over"]).min(1.0);
        rate *= match name.as_str() {
            "warm_up" => numbers["start"] + (1.0 - numbers["start"]) * way(after),
            "step_decay" => {
                let steps =
                    (0..=before).filter(|b| *b > 0 && f64::from(*b) % numbers["every"] == 0.0);
                power(numbers["factor"], steps.count() as u64)
            }
            "staleness_decay" => 1.0 / raised(at.staleness.max(1), numbers["power"]),
            "linear_scaling" => f64::from(small(at.round_count)) / numbers["records"],
            "sqrt_scaling" => {
                let samples = at.samples.max(at.round_count);
                (f64::from(small(samples)) / numbers["batch"]).sqrt()
            }
            "cosine" => {
                let rest = 1.0 - numbers["floor"];
                numbers["floor"] + rest * (1.0 + cos_pi(way(before))) / 2.0
            }
            _ => 1.0,
        };
    }
    rate
}

/// The cosine of `pi * x` by the sine's series about its root, term by term from the last.
fn cos_pi(x: f64) -> f64 {
    let y = std::f64::consts::PI * (x - 0.5);
    let terms = (1..=11).rev().map(|n| f64::from(2 * n) * f64::from(2 * n + 1));
    -(y * (1.0 - terms.fold(0.0, |sum, divisor| (1.0 - sum) * (y * y) / divisor)))
}

/// `base^exponent` from whole powers and square roots, one for each binary digit of the rest.
pub fn raised(base: u64, exponent: f64) -> f64 {
    let base = f64::from(small(base));
    let roots = std::iter::successors(Some(base.sqrt()), |root| Some(root.sqrt()));
    let mut rest = exponent.fract();
    let mut result =
        power(base, (0..64).filter(|whole| f64::from(*whole) < exponent.floor()).count() as u64);
    for root in roots.take(60) {
        rest *= 2.0;
        if rest >= 1.0 {
            (result, rest) = (result * root, rest - 1.0);
        }
    }
    result
}

/// One element's update; `g` is the scaled gradient.
pub fn update(
    parts: &[Part],
    at: At,
    before: Before,
    mut p: f32,
    mut g: f32,
    mut s: &mut [f32],
) -> f32 {
    let (rate, t) = (rate(parts, at), at.count);
    for part in parts {
        let (name, numbers) = part;
        let number = |name: &str| single(numbers[name]);
        let lr = numbers.get("lr").map_or(0.0, |lr| lr * rate);
        match name.as_str() {
            "clip" => g = g.clamp(-number("max"), number("max")),
            "weight_decay" => g += number("rate") * p,
            "trace" => {
                s[0] = number("decay") * s[0] + g;
                g = s[0];
            }
            "fasgd" => {
                let rest = |name: &str| single(1.0 - numbers[name]);
                s[0] = number("gamma") * s[0] + rest("gamma") * (g * g);
                s[1] = number("gamma") * s[1] + rest("gamma") * g;
                let variance = (s[0] - s[1] * s[1]).max(0.0);
                let deviation = (variance + number("eps")).sqrt();
                s[2] = number("beta") * s[2] + rest("beta") * deviation;
                g /= s[2] * single(f64::from(small(at.staleness.max(1))));
            }
            "delay_compensation" => {
                g *= 1.0 + number("strength") * g * (p - before.base);
            }
            "adaptive_delay_compensation" => {
                s[0] = number("decay") * s[0] + single(1.0 - numbers["decay"]) * (g * g);
                let strength = number("strength") / (s[0] + number("eps")).sqrt();
                g *= 1.0 + strength * g * (p - before.base);
            }
            "gap_aware" => {
                let step = (p - before.last).abs();
                s[0] = number("decay") * s[0] + single(1.0 - numbers["decay"]) * step;
                let seen = 1.0 - power(numbers["decay"], t - 1);
                let mean = s[0] * if t > 1 { single(1.0 / seen) } else { 1.0 };
                g /= (p - before.base).abs() / (mean + number("eps")) + 1.0;
            }
            "warm_up" | "step_decay" | "cosine" | "staleness_decay" | "linear_scaling"
            | "sqrt_scaling" => {}
            "sgd" => p -= single(lr) * g,
            "momentum" => {
                s[0] = number("momentum") * s[0] + g;
                let nesterov = numbers["nesterov"] > 0.5;
                let direction = if nesterov { g + number("momentum") * s[0] } else { s[0] };
                p -= single(lr) * direction;
            }
            "adagrad" => {
                s[0] += g * g;
                p -= single(lr) * g / (s[0].sqrt() + number("eps"));
            }
            "adam" | "adamw" => {
                if name == "adamw" {
                    p -= single(numbers["lr"] * numbers["decay"] * rate) * p;
                }
                let (beta1, beta2) = (numbers["beta1"], numbers["beta2"]);
                s[0] = single(beta1) * s[0] + single(1.0 - beta1) * g;
                s[1] = single(beta2) * s[1] + single(1.0 - beta2) * (g * g);
                let step = single(lr / (1.0 - power(beta1, t)));
                let root = single(1.0 / (1.0 - power(beta2, t)).sqrt());
                p -= step * s[0] / (s[1].sqrt() * root + number("eps"));
            }
            _ => panic!("no twin for {name}"),
        }
        s = &mut s[initial_of(part).len()..];
    }
    p
}

/// The product of `base^(2^k)` for every bit `k` of `t`, from the lowest up.
fn power(base: f64, t: u64) -> f64 {
    let squares = std::iter::successors(Some(base), |square| Some(square * square));
    let bits = squares.enumerate().take(64).filter(|(bit, _)| t >> bit & 1 == 1);
    bits.fold(1.0, |product, (_, square)| product * square)
}

/// What a store promises, for the store and its twin alike.
pub trait Records: Sync {
    fn take(
        &self,
        fragment: usize,
        gradient: &[f32],
        base_version: u64,
        admission: &Admission,
    ) -> Result<Applied, ApplyError>;
    fn close(
        &self,
        fragment: usize,
        round: u64,
        factor: Option<f32>,
    ) -> Result<Option<Closed>, CloseError>;
    fn open(&self, fragment: usize) -> Accumulated;
    fn plane(&self, plane: usize) -> Vec<f32>;
    fn counters(&self) -> (u64, Vec<u64>, Vec<u64>);

    fn apply(&self, fragment: usize, gradient: &[f32], scale: f32) -> Result<Applied, ApplyError> {
        self.take(fragment, gradient, u64::MAX, &Admission::from(scale))
    }
}

impl Records for Store {
    fn take(
        &self,
        fragment: usize,
        gradient: &[f32],
        base_version: u64,
        admission: &Admission,
    ) -> Result<Applied, ApplyError> {
        Store::take(self, fragment, Gradient::F32(gradient), base_version, admission)
    }

    fn close(
        &self,
        fragment: usize,
        round: u64,
        factor: Option<f32>,
    ) -> Result<Option<Closed>, CloseError> {
        self.close_round(fragment, round, factor)
    }

    fn open(&self, fragment: usize) -> Accumulated {
        self.accumulated(fragment).expect("it accumulates")
    }

    fn plane(&self, plane: usize) -> Vec<f32> {
        let mut target = vec![0.0; self.geometry().len];
        self.read_plane(plane, 0, &mut target).expect("the plane exists");
        target
    }

    fn counters(&self) -> (u64, Vec<u64>, Vec<u64>) {
        let each = |of: fn(&Store, usize) -> u64| {
            (0..self.fragments()).map(|fragment| of(self, fragment)).collect()
        };
        (self.lsn(), each(Store::version), each(Store::fragment_lsn))
    }
}

/// Everything under one lock, element by element.
pub struct Twin {
    geometry: Geometry,
    parts: Vec<Part>,
    state: Mutex<State>,
}

struct State {
    planes: Vec<Vec<f32>>,
    lsn: u64,
    versions: Vec<u64>,
    lsns: Vec<u64>,
    samples: Vec<u64>,
    rounds: Vec<(Accumulated, Vec<f32>)>,
    /// Of each fragment, the parameters of its past versions, all of them, the newest last.
    past: Vec<Vec<Vec<f32>>>,
}

impl Twin {
    pub fn new(geometry: Geometry, parts: &[Part]) -> Self {
        let mut planes = vec![vec![0.0; geometry.len]];
        planes.extend(initial_state(parts).into_iter().map(|value| vec![value; geometry.len]));
        let zeros = vec![0; geometry.fragments()];
        let rounds = vec![(Accumulated::default(), vec![]); geometry.fragments()];
        let (versions, lsns, samples) = (zeros.clone(), zeros.clone(), zeros);
        let past = vec![vec![]; geometry.fragments()];
        let state = State { planes, lsn: 0, versions, lsns, samples, rounds, past };
        Self { geometry, parts: parts.to_vec(), state: Mutex::new(state) }
    }

    /// Past versions that a store of these parts remembers.
    fn history(&self) -> usize {
        let longest = self.parts.iter().filter_map(|(_, numbers)| numbers.get("history").copied());
        longest.map(|most| (0_u16..257).filter(|n| f64::from(*n) < most).count()).max().unwrap_or(0)
    }

    pub fn load(&self, values: &[f32]) {
        self.state.lock().unwrap().planes[0].copy_from_slice(values);
    }

    /// One update from a gradient times `scale`.
    fn update(
        &self,
        state: &mut State,
        fragment: usize,
        gradient: &[f32],
        scale: f32,
        at: At,
    ) -> Result<Applied, ApplyError> {
        let mut planes = state.planes.clone();
        let (mut bad_gradient, mut bad_result) = (vec![], vec![]);
        let past = &state.past[fragment];
        let kept = self.history().min(past.len());
        let ago = |back: usize, index: usize, offset: usize| match back.min(kept) {
            0 => state.planes[0][index],
            back => past[past.len() - back][offset],
        };
        let back = usize::try_from(at.staleness).unwrap();
        for (offset, index) in self.geometry.fragment_range(fragment).enumerate() {
            let before = Before { last: ago(1, index, offset), base: ago(back, index, offset) };
            let g = gradient[offset] * scale;
            let mut s: Vec<f32> = planes[1..].iter().map(|plane| plane[index]).collect();
            let p = update(&self.parts, at, before, planes[0][index], g, &mut s);
            if !g.is_finite() {
                bad_gradient.push(offset);
            }
            if !p.is_finite() || s.iter().any(|value| !value.is_finite()) {
                bad_result.push(offset);
            }
            planes[0][index] = p;
            for (plane, value) in planes[1..].iter_mut().zip(s) {
                plane[index] = value;
            }
        }
        if let Some(&first_index) = bad_gradient.first() {
            return Err(ApplyError::NonFinite { count: bad_gradient.len(), first_index });
        }
        if let Some(&first_index) = bad_result.first() {
            return Err(ApplyError::ResultNonFinite { count: bad_result.len(), first_index });
        }
        let gone = state.planes[0][self.geometry.fragment_range(fragment)].to_vec();
        state.past[fragment].push(gone);
        state.planes = planes;
        state.lsn += 1;
        state.versions[fragment] = at.count;
        state.lsns[fragment] = state.lsn;
        state.samples[fragment] += at.samples;
        Ok(Applied { lsn: state.lsn, version_before: at.count - 1 })
    }
}

impl State {
    fn at(&self, fragment: usize, staleness: u64, round_count: u64, samples: u64) -> At {
        let samples_before = self.samples[fragment];
        let count = self.versions[fragment] + 1;
        At { count, staleness, round_count, samples_before, samples }
    }

    /// The refusal, unless the round is open or may be opened.
    fn expect_open(&self, fragment: usize, round: u64) -> Result<(), ApplyError> {
        let Accumulated { round: open, count, .. } = self.rounds[fragment].0;
        if round == open || (count == 0 && round > open) {
            return Ok(());
        }
        Err(ApplyError::Round { round, open, count })
    }
}

impl Records for Twin {
    fn take(
        &self,
        fragment: usize,
        gradient: &[f32],
        base_version: u64,
        admission: &Admission,
    ) -> Result<Applied, ApplyError> {
        let range = self.geometry.fragment_range(fragment);
        if gradient.len() != range.len() {
            let (expected, actual) = (range.len(), gradient.len());
            return Err(ApplyError::Length { expected, actual });
        }
        let mut state = self.state.lock().unwrap();
        let version_before = state.versions[fragment];
        let staleness = version_before.saturating_sub(base_version);
        let power = raised(staleness.max(1), admission.staleness_power);
        let weight = admission.round.map_or(1.0, |round| round.weight);
        let factor = single(f64::from(admission.scale) * weight / power);
        let Some(round) = admission.round else {
            let at = state.at(fragment, staleness, 1, admission.samples);
            return self.update(&mut state, fragment, gradient, factor, at);
        };
        state.expect_open(fragment, round.number)?;
        let products: Vec<f32> = gradient.iter().map(|g| factor * g).collect();
        let bad: Vec<usize> = (0..products.len()).filter(|&i| !products[i].is_finite()).collect();
        if let Some(&first_index) = bad.first() {
            return Err(ApplyError::NonFinite { count: bad.len(), first_index });
        }
        let (open, sum) = &mut state.rounds[fragment];
        if sum.is_empty() {
            *sum = products;
        } else {
            sum.iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
        }
        open.round = round.number;
        open.count += 1;
        open.weight += round.weight;
        open.samples += admission.samples;
        open.staleness = open.staleness.max(staleness);
        state.lsn += 1;
        Ok(Applied { lsn: state.lsn, version_before })
    }

    fn close(
        &self,
        fragment: usize,
        round: u64,
        factor: Option<f32>,
    ) -> Result<Option<Closed>, CloseError> {
        let mut state = self.state.lock().unwrap();
        state.expect_open(fragment, round).map_err(CloseError::NotNow)?;
        let next = Accumulated { round: round + 1, ..Accumulated::default() };
        let (of, sum) = std::mem::replace(&mut state.rounds[fragment], (next, vec![]));
        if of.count == 0 {
            state.lsn += 1;
            return Ok(None);
        }
        let scale = factor.unwrap_or_else(|| single(1.0 / of.weight));
        let at = state.at(fragment, of.staleness, of.count, of.samples);
        match self.update(&mut state, fragment, &sum, scale, at) {
            Ok(Applied { lsn, version_before }) => {
                Ok(Some(Closed { lsn, version: version_before + 1, of }))
            }
            Err(cause) => {
                state.lsn += 1;
                Err(CloseError::Dropped { of, cause })
            }
        }
    }

    fn open(&self, fragment: usize) -> Accumulated {
        self.state.lock().unwrap().rounds[fragment].0
    }

    fn plane(&self, plane: usize) -> Vec<f32> {
        self.state.lock().unwrap().planes[plane].clone()
    }

    fn counters(&self) -> (u64, Vec<u64>, Vec<u64>) {
        let state = self.state.lock().unwrap();
        (state.lsn, state.versions.clone(), state.lsns.clone())
    }
}

/// Bits, so that -0.0 and 0.0 differ and NaN equals itself.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
