//! Frames as Python objects and bytes.

use downpour::frame::{HEADER_SIZE, Header, Kind, Scan};
use downpour::inlet;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::buffer::Input;
use crate::door::enter;
use crate::error::Failure;

/// One received frame's header, and its payload if it is not streamed elsewhere.
#[pyclass(frozen, get_all, module = "pydownpour._core")]
pub struct Frame {
    kind: u8,
    flags: u32,
    codec: u8,
    dtype: u8,
    replica: u32,
    incarnation: u32,
    fragment: u32,
    seq: u64,
    version: u64,
    length: u64,
    aux: u32,
    count: u32,
    payload: Py<PyBytes>,
}

impl Frame {
    pub fn new(py: Python<'_>, header: &Header, payload: &[u8]) -> Self {
        Self {
            kind: header.kind as u8,
            flags: header.flags,
            codec: header.codec,
            dtype: header.dtype,
            replica: header.replica,
            incarnation: header.incarnation,
            fragment: header.fragment,
            seq: header.seq,
            version: header.version,
            length: header.length,
            aux: header.aux,
            count: header.count,
            payload: PyBytes::new(py, payload).unbind(),
        }
    }

    pub fn received(py: Python<'_>, frame: &inlet::Frame) -> Self {
        Self::new(py, &frame.header, &frame.payload)
    }
}

#[pymethods]
impl Frame {
    fn __repr__(&self) -> String {
        let kind = Kind::from_number(self.kind).map_or("?", Kind::name);
        format!(
            "Frame({kind}, replica={}, incarnation={}, fragment={}, seq={}, version={}, \
             count={}, aux={}, length={})",
            self.replica,
            self.incarnation,
            self.fragment,
            self.seq,
            self.version,
            self.count,
            self.aux,
            self.length,
        )
    }
}

/// Header and payload, with both checksums.
#[pyfunction]
#[pyo3(
    signature = (*, kind, flags = 0, codec = 0, dtype = 0, replica = 0, incarnation = 0,
        fragment = 0, seq = 0, version = 0, aux = 0, count = 0, payload = None),
    text_signature = "(*, kind, flags=0, codec=0, dtype=0, replica=0, incarnation=0, \
        fragment=0, seq=0, version=0, aux=0, count=0, payload=b'')"
)]
#[allow(clippy::too_many_arguments, reason = "the fields of a header, by keyword")]
pub fn encode_frame(
    py: Python<'_>,
    kind: u8,
    flags: u32,
    codec: u8,
    dtype: u8,
    replica: u32,
    incarnation: u32,
    fragment: u32,
    seq: u64,
    version: u64,
    aux: u32,
    count: u32,
    payload: Option<Input>,
) -> PyResult<Bound<'_, PyBytes>> {
    let payload = payload.as_ref().map_or(&[][..], Input::bytes);
    let head = enter(py, payload.len(), || {
        let known = Kind::from_number(kind)
            .ok_or(Failure::Encode(downpour::frame::Fault::Kind { found: kind }))?;
        let header = Header {
            flags,
            codec,
            dtype,
            replica,
            incarnation,
            fragment,
            seq,
            version,
            aux,
            count,
            ..Header::new(known).with_payload(payload)
        };
        let head = header.encode();
        // What our own decoder would not take must not leave.
        Header::decode(&head).map_err(Failure::Encode)?;
        Ok(head)
    })?;
    PyBytes::new_with(py, HEADER_SIZE + payload.len(), |bytes| {
        let (start, rest) = bytes.split_at_mut(HEADER_SIZE);
        start.copy_from_slice(&head);
        rest.copy_from_slice(payload);
        Ok(())
    })
}

/// Parse whole frames from a buffer.
#[pyfunction]
pub fn scan_frames(py: Python<'_>, data: Input) -> PyResult<Bound<'_, PyList>> {
    let bytes = data.bytes();
    let frames = enter(py, bytes.len(), || {
        Scan::new(bytes).collect::<Result<Vec<_>, _>>().map_err(Failure::Protocol)
    })?;
    let list = PyList::empty(py);
    for (header, payload) in frames {
        list.append(Bound::new(py, Frame::new(py, &header, payload))?)?;
    }
    Ok(list)
}
