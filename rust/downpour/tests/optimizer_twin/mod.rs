//! The slow twins: every part as a few lines of plain scalar arithmetic, and a store that is one
//! mutex around plain vectors. Read these to know what the fast ones must compute.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::collections::BTreeMap;
use std::sync::Mutex;

use downpour::kernel::{Gradient, Level};
use downpour::optimizer::{Optimizer, parts};
use downpour::store::{Applied, ApplyError, Geometry, Store};

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
        ("trace", "decay") | (_, "momentum" | "beta1") => 0.9,
        (_, "max") => 0.75,
        (_, "rate") => 0.01,
        (_, "updates") => 5.0,
        (_, "every") => 2.0,
        (_, "start" | "floor" | "initial") => 0.1,
        (_, "factor") => 0.5,
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
        "momentum" | "trace" => vec![0.0],
        "adagrad" => vec![single(numbers["initial"])],
        "adam" | "adamw" => vec![0.0, 0.0],
        _ => vec![],
    }
}

#[allow(clippy::cast_possible_truncation)]
fn single(value: f64) -> f32 {
    value as f32
}

/// What the chain's schedules make of the learning rate at the `t`-th update.
fn rate(parts: &[Part], t: u64) -> f64 {
    let before = u32::try_from(t - 1).expect("tests are short");
    let mut rate = 1.0;
    for (name, numbers) in parts {
        let way = |count: u32| (f64::from(count) / numbers["updates"]).min(1.0);
        rate *= match name.as_str() {
            "warm_up" => numbers["start"] + (1.0 - numbers["start"]) * way(before + 1),
            "step_decay" => {
                let steps =
                    (0..=before).filter(|b| *b > 0 && f64::from(*b) % numbers["every"] == 0.0);
                power(numbers["factor"], steps.count() as u64)
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

/// One element's update, the `t`-th of its fragment; `g` is the scaled gradient.
pub fn update(parts: &[Part], t: u64, mut p: f32, mut g: f32, mut s: &mut [f32]) -> f32 {
    let rate = rate(parts, t);
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
            "warm_up" | "step_decay" | "cosine" => {}
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
    fn apply(&self, fragment: usize, gradient: &[f32], scale: f32) -> Result<Applied, ApplyError>;
    fn plane(&self, plane: usize) -> Vec<f32>;
    fn counters(&self) -> (u64, Vec<u64>, Vec<u64>);
}

impl Records for Store {
    fn apply(&self, fragment: usize, gradient: &[f32], scale: f32) -> Result<Applied, ApplyError> {
        Store::apply(self, fragment, Gradient::F32(gradient), scale)
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
}

impl Twin {
    pub fn new(geometry: Geometry, parts: &[Part]) -> Self {
        let mut planes = vec![vec![0.0; geometry.len]];
        planes.extend(initial_state(parts).into_iter().map(|value| vec![value; geometry.len]));
        let zeros = vec![0; geometry.fragments()];
        let state = State { planes, lsn: 0, versions: zeros.clone(), lsns: zeros };
        Self { geometry, parts: parts.to_vec(), state: Mutex::new(state) }
    }

    pub fn load(&self, values: &[f32]) {
        self.state.lock().unwrap().planes[0].copy_from_slice(values);
    }
}

impl Records for Twin {
    fn apply(&self, fragment: usize, gradient: &[f32], scale: f32) -> Result<Applied, ApplyError> {
        let range = self.geometry.fragment_range(fragment);
        if gradient.len() != range.len() {
            let (expected, actual) = (range.len(), gradient.len());
            return Err(ApplyError::Length { expected, actual });
        }
        let mut state = self.state.lock().unwrap();
        let t = state.versions[fragment] + 1;
        let mut planes = state.planes.clone();
        let (mut bad_gradient, mut bad_result) = (vec![], vec![]);
        for (offset, index) in range.enumerate() {
            let g = gradient[offset] * scale;
            let mut s: Vec<f32> = planes[1..].iter().map(|plane| plane[index]).collect();
            let p = update(&self.parts, t, planes[0][index], g, &mut s);
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
        state.planes = planes;
        state.lsn += 1;
        state.versions[fragment] = t;
        state.lsns[fragment] = state.lsn;
        Ok(Applied { lsn: state.lsn, version_before: t - 1 })
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
