//! Memory of the stripes: blocks of planes, recycled through free lists.
//!
//! A block holds every plane of one stripe (parameters, then optimizer state), each `stride`
//! elements, aligned to a cache line. The first blocks, one a stripe, lie in one slab; copies made
//! while readers hold old blocks get memory of their own and give it back when enough spares lie
//! on the shelves. A shelf is last-in first-out: the block just retired is still in the cache and
//! becomes the next target, so copy-on-write moves no more memory than writing in place.
//!
//! Who may touch a block's memory is decided by two tokens, which only this file and
//! `block_words` make: [`Fresh`] (nobody else knows the block) and [`Held`] (published once,
//! counted since, so nobody may write it).
//!
//! # Limits
//!
//! Blocks are at most `first + copies`; then [`Arena::take`] says so instead of allocating.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{self, NonNull};
use std::slice;

use super::list::{Head, Links};
use super::sync::{AtomicI64, AtomicU64, AtomicUsize, Ordering, UnsafeCell};

/// Every plane of every block starts at a multiple of this many bytes.
const ALIGN: usize = 64;

/// Shelves of spares; a thread prefers one of them, so that it gets its own hot blocks back.
const SHELVES: usize = if cfg!(loom) { 1 } else { 8 };

/// What `count` starts from while a block is published; far above any number of readers.
pub(super) const BIAS: i64 = 1 << 40;

/// What the kernel maps at once if asked. A sweep through a store is bound by memory, and a third
/// of that is walking page tables when the pages are small.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed f32 memory, aligned to [`ALIGN`], or to huge pages if it fills some. The pages are not
/// touched before their first use.
struct Slab {
    base: NonNull<u8>,
    layout: Layout,
    data: NonNull<f32>,
}

impl Slab {
    /// Memory for `len` elements; `None` if there is none.
    fn new(len: usize) -> Option<Self> {
        // Only allocations of small alignment come zeroed from the system untouched, so align here.
        let size = len.checked_mul(size_of::<f32>())?;
        let align = if size >= 2 * HUGE_PAGE { HUGE_PAGE } else { ALIGN };
        let bytes = size.checked_add(align)?;
        let layout = Layout::from_size_align(bytes, align_of::<f32>()).ok()?;
        // SAFETY: the size is at least ALIGN, not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let shift = base.align_offset(align);
        // SAFETY: shift < align, and align bytes were added to the size.
        let start = unsafe { base.add(shift) };
        if align == HUGE_PAGE {
            advise_huge(start, size);
        }
        Some(Self { base, layout, data: start.cast::<f32>() })
    }
}

/// Ask for huge pages where `size` bytes at `start` fill some. Only advice: a refusal is ignored.
#[cfg(target_os = "linux")]
fn advise_huge(start: NonNull<u8>, size: usize) {
    let whole = size / HUGE_PAGE * HUGE_PAGE;
    // SAFETY: the range lies inside an allocation of ours, and the advice changes no contents.
    unsafe {
        libc::madvise(start.as_ptr().cast(), whole, libc::MADV_HUGEPAGE);
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge(_start: NonNull<u8>, _size: usize) {}

// SAFETY: a slab only owns memory; it gives no access to it, and any thread may free it.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed only here.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// Where a block's elements are. `_own` is held by blocks outside the common slab.
struct Memory {
    data: *mut f32,
    _own: Option<Slab>,
}

/// One block: its reference count, its memory, and what was computed from its contents. One cache
/// line, because a sweep finds it cold.
#[repr(align(64))]
pub(super) struct Block {
    /// See `block_words`: references less those already given back, plus BIAS while published.
    pub(super) count: AtomicI64,
    /// CRC-32C of the published parameters: 0 = not computed, else 2^32 + the checksum.
    pub(super) crc: AtomicU64,
    memory: UnsafeCell<Memory>,
}

// SAFETY: `memory` points to memory the arena owns; it is written only through `Fresh`, which is
// unique, and read only through `Held`, whose count keeps writers away.
unsafe impl Send for Block {}
// SAFETY: as above; the other fields are atomics.
unsafe impl Sync for Block {}

/// A cache line for each shelf, so that writers do not share one.
#[repr(align(64))]
struct Shelf(Head);

/// All blocks of a store.
pub(super) struct Arena {
    blocks: Box<[Block]>,
    links: Links,
    shelves: [Shelf; SHELVES],
    /// Blocks without memory.
    bare: Head,
    /// Blocks on shelves.
    spares: AtomicUsize,
    /// Blocks with memory of their own.
    owned: AtomicUsize,
    spares_max: usize,
    first: usize,
    block_len: usize,
    _slab: Slab,
}

impl Arena {
    /// `first` zeroed blocks of `block_len` elements, which the caller publishes; up to `copies`
    /// more on demand. `None` if memory is short.
    pub(super) fn new(
        first: usize,
        copies: usize,
        block_len: usize,
        spares_max: usize,
    ) -> Option<Self> {
        let slab = Slab::new(first.checked_mul(block_len)?)?;
        let total = first.checked_add(copies)?;
        let block = |index: usize| {
            let data = if index < first {
                // SAFETY: the slab has first * block_len elements.
                unsafe { slab.data.add(index * block_len) }.as_ptr()
            } else {
                ptr::null_mut()
            };
            Block {
                count: AtomicI64::new(if index < first { BIAS } else { 0 }),
                crc: AtomicU64::new(0),
                memory: UnsafeCell::new(Memory { data, _own: None }),
            }
        };
        let arena = Self {
            blocks: (0..total).map(block).collect(),
            links: Links::new(total),
            shelves: std::array::from_fn(|_| Shelf(Head::new())),
            bare: Head::new(),
            spares: AtomicUsize::new(0),
            owned: AtomicUsize::new(0),
            spares_max,
            first,
            block_len,
            _slab: slab,
        };
        for index in (first..total).rev() {
            arena.links.push(&arena.bare, u32::try_from(index).ok()?);
        }
        Some(arena)
    }

    /// A block nobody else knows: a spare, or new memory. `None` at the limit or out of memory.
    #[cfg_attr(loom, allow(clippy::modulo_one, reason = "loom needs only one shelf"))]
    pub(super) fn take(&self) -> Option<Fresh<'_>> {
        let mine = shelf();
        for offset in 0..SHELVES {
            let head = &self.shelves[(mine + offset) % SHELVES].0;
            if let Some(index) = self.links.pop(head) {
                // ORDERING: Relaxed, a statistic; `spares_max` is a target, not a bound.
                self.spares.fetch_sub(1, Ordering::Relaxed);
                return Some(Fresh { arena: self, index });
            }
        }
        let index = self.links.pop(&self.bare)?;
        let Some(slab) = Slab::new(self.block_len) else {
            self.links.push(&self.bare, index);
            return None;
        };
        // ORDERING: Relaxed, a statistic.
        self.owned.fetch_add(1, Ordering::Relaxed);
        self.blocks[index as usize].memory.with_mut(|memory| {
            // SAFETY: the index was popped, so this thread alone knows the block.
            unsafe { *memory = Memory { data: slab.data.as_ptr(), _own: Some(slab) } }
        });
        Some(Fresh { arena: self, index })
    }

    /// Put a block that nobody references on a shelf, or give its memory back.
    ///
    /// The caller owns the block: it was `Fresh`, or its count has just become zero.
    pub(super) fn put(&self, index: u32) {
        // ORDERING: Relaxed, as in `take`; the lists' own Release and Acquire order the memory.
        let spares = self.spares.fetch_add(1, Ordering::Relaxed);
        if spares >= self.spares_max && index as usize >= self.first {
            self.spares.fetch_sub(1, Ordering::Relaxed);
            self.owned.fetch_sub(1, Ordering::Relaxed);
            self.blocks[index as usize].memory.with_mut(|memory| {
                // SAFETY: the caller owns the block, so nobody reads its memory.
                unsafe { *memory = Memory { data: ptr::null_mut(), _own: None } }
            });
            self.links.push(&self.bare, index);
        } else {
            self.links.push(&self.shelves[shelf()].0, index);
        }
    }

    pub(super) fn block(&self, index: u32) -> &Block {
        &self.blocks[index as usize]
    }

    /// Every plane of a block someone holds a reference to.
    pub(super) fn planes(&self, held: &Held) -> &[f32] {
        assert_eq!(held.arena, self.id(), "a reference into another store");
        self.blocks[held.index as usize].memory.with(|memory| {
            // SAFETY: the block was published (so its memory is set and initialised) and `held`
            // keeps its count above zero, so nobody writes it while `held` is borrowed; the arena
            // outlives the slice by the borrow of self.
            unsafe { slice::from_raw_parts((*memory).data, self.block_len) }
        })
    }

    /// Which arena a token belongs to.
    pub(super) fn id(&self) -> usize {
        self.blocks.as_ptr().addr()
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.block_len * size_of::<f32>()
    }

    /// Bytes of everything that is not elements. What aligning the slab skips is not counted: it
    /// is address space that is never touched.
    pub(super) fn table_bytes(&self) -> usize {
        size_of_val(&*self.blocks) + self.links.bytes() + size_of::<Self>()
    }

    /// Blocks on shelves, and blocks beyond one a stripe that have memory. Statistics.
    pub(super) fn counts(&self) -> (usize, usize) {
        // ORDERING: Relaxed, statistics.
        (self.spares.load(Ordering::Relaxed), self.owned.load(Ordering::Relaxed))
    }

    pub(super) fn copies_max(&self) -> usize {
        self.blocks.len() - self.first
    }
}

/// A block this thread alone knows: it may be written. Dropping it puts it back.
pub(super) struct Fresh<'a> {
    arena: &'a Arena,
    index: u32,
}

impl Fresh<'_> {
    /// Every plane. The contents are whatever the block held last.
    pub(super) fn planes_mut(&mut self) -> &mut [f32] {
        let block = &self.arena.blocks[self.index as usize];
        block.memory.with_mut(|memory| {
            // SAFETY: `Fresh` is unique for its block and borrowed mutably; its memory was set by
            // `take` or `new`, zeroed when allocated, and has block_len elements.
            unsafe { slice::from_raw_parts_mut((*memory).data, self.arena.block_len) }
        })
    }

    pub(super) fn planes(&self) -> &[f32] {
        let block = &self.arena.blocks[self.index as usize];
        block.memory.with(|memory| {
            // SAFETY: as for `planes_mut`, borrowed shared.
            unsafe { slice::from_raw_parts((*memory).data, self.arena.block_len) }
        })
    }

    /// Give up the token; the caller must publish the block or lose it.
    pub(super) fn into_index(self) -> u32 {
        let index = self.index;
        std::mem::forget(self);
        index
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        self.arena.put(self.index);
    }
}

/// A counted reference to a published block. Not `Clone`, and given back exactly once, to
/// `block_words`.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) index: u32,
    pub(super) arena: usize,
}

/// The shelf this thread prefers, from the address of a thread-local byte.
fn shelf() -> usize {
    #[cfg(not(loom))]
    {
        thread_local!(static HERE: u8 = const { 0 });
        HERE.with(|here| (ptr::from_ref(here).addr() >> 12).wrapping_mul(0x9E37_79B9) >> 16)
            % SHELVES
    }
    #[cfg(loom)]
    0
}
