//! The closed lists of the wire: kinds of frames, codes of refusals, flags.

/// What a frame says, and who may say it. Numbers are for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Replica to shard: `count` FRAGMENT frames of push `seq` follow, from `fragment` on.
    Push = 1,
    /// Replica to shard: one record of the run announced before.
    Fragment = 2,
    /// Shard to replica: `count` records of push `seq` from `fragment` on have been settled.
    Ack = 3,
    /// Shard to replica: `count` records of push `seq` from `fragment` on were refused, with a
    /// [`Code`] in `aux`.
    Refuse = 4,
    /// Replica to shard: send what changed after LSN `version`, from `fragment` on; `seq` numbers
    /// the request.
    Fetch = 5,
    /// Shard to replica: the parameters of one fragment.
    Parameters = 6,
    /// Shard to replica: the fetch numbered `seq` is complete.
    Fetched = 7,
    /// Either way: answer with PONG and the same `seq`.
    Ping = 8,
    /// Either way: the answer to PING.
    Pong = 9,
    /// Either way: the sender gives up on this stream; `aux` has a code, the payload the words.
    Error = 10,
    /// Either way: the sender is done and closes in good order.
    Bye = 11,
    /// Shard to replica: what the shard knows of the cluster, and for whom an answer waits.
    View = 12,
    /// Replica to replica: one fragment of the sum of a subtree's gradients.
    Sum = 13,
    /// Replica to replica: what it sends of round `seq` is whole.
    Reduced = 14,
}

impl Kind {
    /// Every kind, in the order of its number.
    pub const ALL: [Self; 14] = [
        Self::Push,
        Self::Fragment,
        Self::Ack,
        Self::Refuse,
        Self::Fetch,
        Self::Parameters,
        Self::Fetched,
        Self::Ping,
        Self::Pong,
        Self::Error,
        Self::Bye,
        Self::View,
        Self::Sum,
        Self::Reduced,
    ];

    /// The kind with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// The name in capitals, as documents and messages write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Push => "PUSH",
            Self::Fragment => "FRAGMENT",
            Self::Ack => "ACK",
            Self::Refuse => "REFUSE",
            Self::Fetch => "FETCH",
            Self::Parameters => "PARAMETERS",
            Self::Fetched => "FETCHED",
            Self::Ping => "PING",
            Self::Pong => "PONG",
            Self::Error => "ERROR",
            Self::Bye => "BYE",
            Self::View => "VIEW",
            Self::Sum => "SUM",
            Self::Reduced => "REDUCED",
        }
    }

    /// Whether a replica sends this kind to a shard.
    #[must_use]
    pub fn is_for_shard(self) -> bool {
        !matches!(
            self,
            Self::Ack
                | Self::Refuse
                | Self::Parameters
                | Self::Fetched
                | Self::View
                | Self::Sum
                | Self::Reduced
        )
    }

    /// Whether a shard, or another replica, sends this kind to a replica.
    #[must_use]
    pub fn is_for_replica(self) -> bool {
        !matches!(self, Self::Push | Self::Fragment | Self::Fetch)
    }

    /// Whether the payload holds array elements, which have a limit of their own.
    #[must_use]
    pub fn carries_elements(self) -> bool {
        matches!(self, Self::Fragment | Self::Parameters | Self::Sum)
    }

    /// The flags this kind may carry. A flag is an instruction: one that is not known is an error.
    #[must_use]
    pub fn flags_known(self) -> u32 {
        match self {
            Self::Ack => FLAG_PUSH_COMPLETE,
            Self::Push => FLAG_PUSH_CONTINUES,
            Self::Fragment => FLAG_FRAGMENT_AGAIN,
            Self::Fetched => FLAG_FETCH_BEGINS,
            Self::View => FLAG_VIEW_SEND_AGAIN,
            Self::Reduced => FLAG_REDUCED_VERDICT,
            _ => 0,
        }
    }
}

/// In an ACK: every record of the run has its answer.
pub const FLAG_PUSH_COMPLETE: u32 = 1;

/// REDUCED flag: what a sum is that nobody has pushed yet.
pub const FLAG_REDUCED_VERDICT: u32 = 1;

/// PUSH flag: another run of the same push follows this one.
pub const FLAG_PUSH_CONTINUES: u32 = 1;

/// FRAGMENT flag: the record has no payload, and stands for its replica's last one.
pub const FLAG_FRAGMENT_AGAIN: u32 = 1;

/// FETCHED flag: the answer begins, its last frame is still to come.
pub const FLAG_FETCH_BEGINS: u32 = 1;

/// VIEW flag: a push that was turned down may come now.
pub const FLAG_VIEW_SEND_AGAIN: u32 = 1;

/// Why a record or a push was refused. Nothing of a refused record was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Code {
    /// The gradient, times the scale, holds NaN or Inf.
    NonFinite = 1,
    /// The optimizer's result would hold NaN or Inf.
    ResultNonFinite = 2,
    /// The payload has not the length of the fragment.
    Length = 3,
    /// The fragment is another shard's.
    Fragment = 4,
    /// The shard does not read this dtype or codec.
    Unsupported = 5,
    /// A newer incarnation of the replica lives.
    Fenced = 6,
    /// The shard does not know what this replica has pushed before.
    UnknownState = 7,
    /// Too many pushes of the replica are open; settle older ones first.
    Window = 8,
    /// Readers pin too many copies; nothing was applied, try again.
    StoreFull = 9,
    /// The policy said no; the words say why.
    Policy = 10,
    /// The record's round is not open: another is, or it was closed.
    Round = 11,
    /// The gradient is larger than the job allows.
    Norm = 12,
    /// The policy does not take the push now, and says when it does: a VIEW asks for it again.
    NotYet = 13,
    /// The shard is served by another process, or is about to be: see the newest shard map.
    WrongEpoch = 14,
    /// Others have changed the fragment since the record's base: it is not for this version.
    Superseded = 15,
    /// The record says "again", and nothing is kept that it could stand for: send it whole.
    NothingKept = 16,
}

impl Code {
    /// Every code, in the order of its number.
    pub const ALL: [Self; 16] = [
        Self::NonFinite,
        Self::ResultNonFinite,
        Self::Length,
        Self::Fragment,
        Self::Unsupported,
        Self::Fenced,
        Self::UnknownState,
        Self::Window,
        Self::StoreFull,
        Self::Policy,
        Self::Round,
        Self::Norm,
        Self::NotYet,
        Self::WrongEpoch,
        Self::Superseded,
        Self::NothingKept,
    ];

    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The name of the constant that the binding exports, without its prefix.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NonFinite => "NON_FINITE",
            Self::ResultNonFinite => "RESULT_NON_FINITE",
            Self::Length => "LENGTH",
            Self::Fragment => "FRAGMENT",
            Self::Unsupported => "UNSUPPORTED",
            Self::Fenced => "FENCED",
            Self::UnknownState => "UNKNOWN_STATE",
            Self::Window => "WINDOW",
            Self::StoreFull => "STORE_FULL",
            Self::Policy => "POLICY",
            Self::Round => "ROUND",
            Self::Norm => "NORM",
            Self::NotYet => "NOT_YET",
            Self::WrongEpoch => "WRONG_EPOCH",
            Self::Superseded => "SUPERSEDED",
            Self::NothingKept => "NOTHING_KEPT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_places_agree() {
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place + 1);
            assert_eq!(Kind::from_number(kind as u8), Some(kind));
            assert!(kind.is_for_shard() || kind.is_for_replica(), "{} is for nobody", kind.name());
        }
        for number in [0, 15, 255] {
            assert_eq!(Kind::from_number(number), None);
        }
        for (place, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code.number() as usize, place + 1);
        }
    }
}
