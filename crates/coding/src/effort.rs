//! How hard to compress.

/// How hard to compress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// The least CPU time.
    Fast,
    /// Most of the gain for little of the time.
    #[default]
    Balanced,
    /// The smallest result.
    Small,
}

impl Effort {
    /// One of three levels: fast, balanced, small.
    pub(crate) fn of<T: Copy>(self, levels: [T; 3]) -> T {
        match self {
            Effort::Fast => levels[0],
            Effort::Balanced => levels[1],
            Effort::Small => levels[2],
        }
    }
}
