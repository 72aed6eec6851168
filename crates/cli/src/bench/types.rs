//! Names of element types and operations on the command line: nccl-tests' and PyTorch's.

use mscclrs_device::{DataType, ReduceOp};

use crate::similar::did_you_mean;

/// Lists of element types, as `-d` takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DataTypes(pub(crate) Vec<DataType>);

/// Lists of operations, as `-o` takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReduceOps(pub(crate) Vec<ReduceOp>);

const TYPES: [(DataType, &[&str]); 5] = [
    (DataType::F16, &["half", "float16", "fp16", "f16"]),
    (DataType::Bf16, &["bfloat16", "bf16"]),
    (DataType::F32, &["float", "float32", "fp32", "f32"]),
    (DataType::I32, &["int32", "int", "i32"]),
    (DataType::U32, &["uint32", "u32"]),
];

/// nccl-tests' name.
pub(crate) fn type_name(data_type: DataType) -> &'static str {
    TYPES.iter().find(|(known, _)| *known == data_type).map_or("?", |(_, names)| names[0])
}

/// Reads "half,bfloat16" or "all".
pub(crate) fn parse_types(text: &str) -> Result<DataTypes, String> {
    let known = |name: &str| {
        TYPES.iter().find(|(_, names)| names.contains(&name)).map(|(data_type, _)| *data_type)
    };
    list(text, &DataType::ALL, known).map(DataTypes).map_err(|name| {
        let words = TYPES.iter().flat_map(|(_, names)| names.iter().copied()).chain(["all"]);
        let meant = did_you_mean(name.trim(), words);
        format!(
            "'{name}' is not an element type{meant}; allowed are half (float16), bfloat16, float \
             (float32), int32 (int), uint32, a list of them such as half,float, or all"
        )
    })
}

/// Reads "sum,max" or "all".
pub(crate) fn parse_ops(text: &str) -> Result<ReduceOps, String> {
    let known = |name: &str| ReduceOp::ALL.into_iter().find(|op| op.name() == name);
    list(text, &ReduceOp::ALL, known).map(ReduceOps).map_err(|name| {
        let words = ReduceOp::ALL.into_iter().map(ReduceOp::name).chain(["all"]);
        let meant = did_you_mean(name.trim(), words);
        format!(
            "'{name}' is not an operation{meant}; allowed are sum, min, max, a list of them such as \
             sum,max, or all"
        )
    })
}

/// Each named item once, in the order given; the first unknown name is the error.
fn list<T: Copy + PartialEq>(
    text: &str,
    all: &[T],
    known: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, String> {
    let mut found = Vec::new();
    for name in text.split(',') {
        let lower = name.trim().to_ascii_lowercase();
        let items = match (lower.as_str(), known(&lower)) {
            (_, Some(item)) => vec![item],
            ("all", None) => all.to_vec(),
            _ => return Err(name.to_owned()),
        };
        for item in items {
            if !found.contains(&item) {
                found.push(item);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_worlds_names_are_known() {
        let types = parse_types("half,float16,bfloat16,Float,int").expect("known");
        assert_eq!(types.0, [DataType::F16, DataType::Bf16, DataType::F32, DataType::I32]);
        assert_eq!(parse_types("all").expect("known").0, DataType::ALL);
        assert_eq!(parse_ops("max,sum").expect("known").0, [ReduceOp::Max, ReduceOp::Sum]);
    }

    #[test]
    fn unknown_names_are_named_with_what_is_allowed() {
        for text in ["double", "half,", "", "fp8_e4m3", "half float"] {
            assert!(parse_types(text).expect_err(text).contains("allowed are half"));
        }
        assert!(parse_ops("avg").expect_err("unknown").starts_with("'avg' is not an operation"));
    }

    #[test]
    fn printed_names_read_back() {
        for data_type in DataType::ALL {
            assert_eq!(parse_types(type_name(data_type)), Ok(DataTypes(vec![data_type])));
        }
    }
}
