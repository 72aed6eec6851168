//! Element types and reduction operations, as values that travel in kernel arguments and formats.

/// The type of a collective's elements.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataType {
    /// IEEE half precision.
    F16 = 0,
    /// bfloat16.
    Bf16 = 1,
    /// IEEE single precision.
    F32 = 2,
    /// Signed 32-bit integer; sums wrap.
    I32 = 3,
    /// Unsigned 32-bit integer; sums wrap.
    U32 = 4,
}

impl DataType {
    /// All of them.
    pub const ALL: [DataType; 5] =
        [DataType::F16, DataType::Bf16, DataType::F32, DataType::I32, DataType::U32];

    /// Bytes an element.
    pub const fn size(self) -> u32 {
        match self {
            DataType::F16 | DataType::Bf16 => 2,
            DataType::F32 | DataType::I32 | DataType::U32 => 4,
        }
    }

    /// Short name: f16, bf16, f32, i32, u32.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::F16 => "f16",
            DataType::Bf16 => "bf16",
            DataType::F32 => "f32",
            DataType::I32 => "i32",
            DataType::U32 => "u32",
        }
    }

    /// From the number in kernel arguments.
    pub const fn from_code(code: u32) -> Option<DataType> {
        Some(match code {
            0 => DataType::F16,
            1 => DataType::Bf16,
            2 => DataType::F32,
            3 => DataType::I32,
            4 => DataType::U32,
            _ => return None,
        })
    }
}

/// How elements of the ranks are combined.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduceOp {
    /// Addition.
    Sum = 0,
    /// The smaller; a NaN loses against a number.
    Min = 1,
    /// The larger; a NaN loses against a number.
    Max = 2,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max];

    /// Short name: sum, min, max.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
        }
    }

    /// From the number in kernel arguments.
    pub const fn from_code(code: u32) -> Option<ReduceOp> {
        Some(match code {
            0 => ReduceOp::Sum,
            1 => ReduceOp::Min,
            2 => ReduceOp::Max,
            _ => return None,
        })
    }
}
