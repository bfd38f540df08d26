//! Element types, and a run of elements of one of them as received.

use thiserror::Error;

#[cfg(target_endian = "big")]
compile_error!("downpour reads and writes little-endian elements in place");

/// What can be wrong with the operands of a kernel.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelError {
    #[error("dtype code {code} is unknown; known are 1 (f32), 2 (f64), 3 (f16), 4 (bf16)")]
    DType { code: u8 },
    #[error("{bytes} bytes are not whole elements of {size} bytes")]
    Ragged { bytes: usize, size: usize },
    #[error("source has {source_len} elements, target {target_len}; they must be equal")]
    Length { source_len: usize, target_len: usize },
}

/// An element type; the discriminant is its code on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    F32 = 1,
    F64 = 2,
    F16 = 3,
    Bf16 = 4,
}

impl DType {
    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

impl TryFrom<u8> for DType {
    type Error = KernelError;

    fn try_from(code: u8) -> Result<Self, KernelError> {
        match code {
            1 => Ok(Self::F32),
            2 => Ok(Self::F64),
            3 => Ok(Self::F16),
            4 => Ok(Self::Bf16),
            _ => Err(KernelError::DType { code }),
        }
    }
}

/// A borrowed run of elements. f16 and bf16 are their raw 16-bit words.
#[derive(Clone, Copy, Debug)]
pub enum Gradient<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    F16(&'a [u16]),
    Bf16(&'a [u16]),
    /// Little-endian elements at an address that is not a multiple of their size. Whole elements:
    /// [`Gradient::from_bytes`] checks the length.
    Unaligned(Unaligned<'a>),
}

/// The bytes of [`Gradient::Unaligned`], a whole number of elements.
#[derive(Clone, Copy, Debug)]
pub struct Unaligned<'a> {
    bytes: &'a [u8],
    dtype: DType,
}

impl<'a> Unaligned<'a> {
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> Gradient<'a> {
    /// View received bytes as elements, wherever they lie.
    ///
    /// # Errors
    ///
    /// [`KernelError::Ragged`] if the bytes are not whole elements.
    pub fn from_bytes(bytes: &'a [u8], dtype: DType) -> Result<Self, KernelError> {
        let size = dtype.size();
        if !bytes.len().is_multiple_of(size) {
            return Err(KernelError::Ragged { bytes: bytes.len(), size });
        }
        let aligned = match dtype {
            DType::F32 => bytemuck::try_cast_slice(bytes).ok().map(Self::F32),
            DType::F64 => bytemuck::try_cast_slice(bytes).ok().map(Self::F64),
            DType::F16 => bytemuck::try_cast_slice(bytes).ok().map(Self::F16),
            DType::Bf16 => bytemuck::try_cast_slice(bytes).ok().map(Self::Bf16),
        };
        Ok(aligned.unwrap_or(Self::Unaligned(Unaligned { bytes, dtype })))
    }

    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::F16(_) => DType::F16,
            Self::Bf16(_) => DType::Bf16,
            Self::Unaligned(raw) => raw.dtype,
        }
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::F16(words) | Self::Bf16(words) => words.len(),
            Self::Unaligned(raw) => raw.bytes.len() / raw.dtype.size(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements `start..stop`.
    ///
    /// # Panics
    ///
    /// If the range is not inside.
    #[must_use]
    pub fn slice(&self, start: usize, stop: usize) -> Gradient<'a> {
        match *self {
            Self::F32(values) => Self::F32(&values[start..stop]),
            Self::F64(values) => Self::F64(&values[start..stop]),
            Self::F16(words) => Self::F16(&words[start..stop]),
            Self::Bf16(words) => Self::Bf16(&words[start..stop]),
            Self::Unaligned(Unaligned { bytes, dtype }) => {
                let size = dtype.size();
                Self::Unaligned(Unaligned { bytes: &bytes[start * size..stop * size], dtype })
            }
        }
    }

    /// The elements as little-endian bytes.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match *self {
            Self::F32(values) => bytemuck::cast_slice(values),
            Self::F64(values) => bytemuck::cast_slice(values),
            Self::F16(words) | Self::Bf16(words) => bytemuck::cast_slice(words),
            Self::Unaligned(raw) => raw.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DType, Gradient, KernelError};

    #[test]
    fn codes_round_trip_and_unknown_ones_are_named() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
            assert_eq!(DType::try_from(dtype as u8), Ok(dtype));
        }
        assert_eq!(DType::try_from(0), Err(KernelError::DType { code: 0 }));
        assert_eq!(DType::try_from(5), Err(KernelError::DType { code: 5 }));
    }

    #[test]
    fn bytes_are_viewed_at_any_address() {
        let room: Vec<u64> = vec![0; 9];
        let bytes: &[u8] = bytemuck::cast_slice(&room);
        for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
            for offset in 0..8 {
                let view = Gradient::from_bytes(&bytes[offset..offset + 64], dtype).unwrap();
                assert_eq!((view.len(), view.dtype()), (64 / dtype.size(), dtype));
                assert_eq!(view.slice(1, 3).len(), 2);
                let moved = offset % dtype.size() != 0;
                assert_eq!(matches!(view, Gradient::Unaligned(_)), moved);
            }
        }
        let ragged = Gradient::from_bytes(&bytes[..7], DType::F32).unwrap_err();
        assert_eq!(ragged, KernelError::Ragged { bytes: 7, size: 4 });
    }
}
