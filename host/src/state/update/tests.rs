//! What updates make of values: by hand, and against a naive model that keeps numbers and lists rather than bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// What comes of an update: the new value, or that it is removed, or that it stays.
#[derive(Debug, Clone, PartialEq)]
enum Outcome {
    To(Vec<u8>),
    Removed,
    Not,
}

fn outcome(
    op: Op,
    expected: Option<&[u8]>,
    operand: Option<&[u8]>,
    current: Option<&[u8]>,
) -> Result<Outcome, UpdateError> {
    let mut buffer = b"left over from before".to_vec();
    Ok(match change(op, expected, operand, current, &mut buffer)? {
        Changed::To => Outcome::To(buffer),
        Changed::Removed => Outcome::Removed,
        Changed::Not => Outcome::Not,
    })
}

fn to(value: &[u8]) -> Result<Outcome, UpdateError> {
    Ok(Outcome::To(value.to_vec()))
}

fn longs(numbers: &[i64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn doubles(numbers: &[f64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn puts_and_deletes_do_what_they_say() {
    assert_eq!(outcome(Op::Put, None, Some(b"new"), Some(b"old")), to(b"new"));
    assert_eq!(outcome(Op::Put, None, Some(b""), None), to(b""));
    assert_eq!(outcome(Op::PutIfAbsent, None, Some(b"new"), None), to(b"new"));
    assert_eq!(outcome(Op::PutIfAbsent, None, Some(b"new"), Some(b"")), Ok(Outcome::Not));
    assert_eq!(outcome(Op::Delete, None, None, Some(b"old")), Ok(Outcome::Removed));
    assert_eq!(outcome(Op::Delete, None, None, None), Ok(Outcome::Removed));
}

#[test]
fn compare_and_put_tells_an_empty_value_from_none() {
    let case = |expected, operand, current| outcome(Op::CompareAndPut, expected, operand, current);
    assert_eq!(case(Some(b"a"), Some(b"b"), Some(b"a")), to(b"b"));
    assert_eq!(case(Some(b"a"), Some(b"b"), Some(b"c")), Ok(Outcome::Not));
    assert_eq!(case(Some(b"a"), None, Some(b"a")), Ok(Outcome::Removed));
    assert_eq!(case(None, Some(b"b"), None), to(b"b"));
    assert_eq!(case(None, Some(b"b"), Some(b"")), Ok(Outcome::Not));
    assert_eq!(case(Some(b""), Some(b"b"), None), Ok(Outcome::Not));
    assert_eq!(case(Some(b""), Some(b"b"), Some(b"")), to(b"b"));
}

#[test]
fn numbers_are_combined_one_by_one() {
    let add = |operand: &[i64], current: &[i64]| {
        outcome(Op::Add(Number::S64), None, Some(&longs(operand)), Some(&longs(current)))
    };
    assert_eq!(add(&[1, -2, 3], &[10, 20, i64::MAX - 3]), to(&longs(&[11, 18, i64::MAX])));
    assert_eq!(add(&[0, 1], &[0, i64::MAX]), Err(UpdateError::Overflow));
    assert_eq!(add(&[-1], &[i64::MIN]), Err(UpdateError::Overflow));
    let current = floats(&[0.1, 3.0]);
    let sums = outcome(Op::Add(Number::F32), None, Some(&floats(&[0.2, -1.5])), Some(&current));
    assert_eq!(sums, to(&[0x9a, 0x99, 0x99, 0x3e, 0x00, 0x00, 0xc0, 0x3f]), "0.3 rounded upwards, and 1.5");
    let case = |op, expected: &[i64]| {
        assert_eq!(outcome(op, None, Some(&longs(&[-5, 5])), Some(&longs(&[4, 4]))), to(&longs(expected)));
    };
    case(Op::Min(Number::S64), &[-5, 4]);
    case(Op::Max(Number::S64), &[4, 5]);
}

#[test]
fn without_a_value_the_operand_becomes_it() {
    for op in [Op::Add(Number::F64), Op::Min(Number::S64), Op::Max(Number::F32)] {
        assert_eq!(outcome(op, None, Some(&longs(&[7])), None), to(&longs(&[7])));
    }
    assert_eq!(outcome(Op::Append { items_max: 3 }, None, Some(b"ab"), None), to(b"\x02\0\0\0ab"));
}

#[test]
fn vectors_of_another_shape_are_refused() {
    let width = |value, operand, width| Err(UpdateError::Width { value, operand, width });
    let case = |op, operand: usize, current: Option<usize>| {
        let current = current.map(|bytes| vec![0; bytes]);
        outcome(op, None, Some(&vec![0; operand]), current.as_deref())
    };
    assert_eq!(case(Op::Add(Number::S64), 16, Some(8)), width(8, 16, 8));
    assert_eq!(case(Op::Add(Number::S64), 12, Some(12)), width(12, 12, 8));
    assert_eq!(case(Op::Add(Number::F32), 12, Some(12)), to(&[0; 12]));
    assert_eq!(case(Op::Max(Number::F32), 6, None), width(6, 6, 4));
    assert_eq!(case(Op::Min(Number::F64), 8, Some(0)), width(0, 8, 8));
}

#[test]
fn what_is_no_number_stands_behind_infinity_whatever_its_sign() {
    let negative_nan = f64::from_bits(0xfff8_0000_0000_0001);
    let case = |op, operand: f64, current: f64, expected: f64| {
        let result = outcome(op, None, Some(&doubles(&[operand])), Some(&doubles(&[current])));
        assert_eq!(result, to(&doubles(&[expected])), "{op:?} {operand} {current}");
    };
    let (min, max) = (Op::Min(Number::F64), Op::Max(Number::F64));
    case(min, negative_nan, 1.0, 1.0);
    case(min, 1.0, negative_nan, 1.0);
    case(max, negative_nan, f64::INFINITY, negative_nan);
    case(max, f64::INFINITY, negative_nan, negative_nan);
    case(max, f64::NAN, negative_nan, negative_nan);
    case(min, f64::NEG_INFINITY, -0.0, f64::NEG_INFINITY);
    case(min, -0.0, 0.0, -0.0);
    case(max, -0.0, 0.0, 0.0);
    case(Op::Add(Number::F64), f64::INFINITY, f64::NEG_INFINITY, f64::from_bits(0x7ff8_0000_0000_0000));
    case(Op::Add(Number::F64), 1.0, negative_nan, f64::from_bits(0x7ff8_0000_0000_0000));
}

#[test]
fn append_keeps_the_newest_items() {
    let op = Op::Append { items_max: 2 };
    assert_eq!(outcome(op, None, Some(b"c"), Some(b"\x01\0\0\0a\0\0\0\0")), to(b"\0\0\0\0\x01\0\0\0c"));
    let one = Op::Append { items_max: 1 };
    assert_eq!(outcome(one, None, Some(b"c"), Some(b"\x01\0\0\0a\0\0\0\0")), to(b"\x01\0\0\0c"));
    for damaged in [b"\x01\0\0".as_slice(), b"\x02\0\0\0a", b"\x01\0\0\0ab", b"\xff\xff\xff\xff"] {
        assert_eq!(outcome(op, None, Some(b"c"), Some(damaged)), Err(UpdateError::Items), "{damaged:?}");
    }
}

#[test]
fn values_have_a_limit() {
    let too_large = |bytes| Err(UpdateError::TooLarge { bytes, bytes_max: VALUE_BYTES_MAX });
    let full = vec![0; VALUE_BYTES_MAX];
    assert_eq!(outcome(Op::Put, None, Some(&full), None), to(&full));
    assert_eq!(outcome(Op::Put, None, Some(&vec![0; VALUE_BYTES_MAX + 1]), None), too_large(VALUE_BYTES_MAX + 1));
    let append = Op::Append { items_max: 9 };
    assert_eq!(outcome(append, None, Some(&full[4..]), None).map(|_| ()), Ok(()));
    assert_eq!(outcome(append, None, Some(&full[4..]), Some(b"\0\0\0\0")), too_large(VALUE_BYTES_MAX + 4));
}

/// The model: how many updates in a row change a list of numbers that is no list of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Combine {
    Add,
    Min,
    Max,
}

impl Combine {
    fn op(self, number: Number) -> Op {
        match self {
            Self::Add => Op::Add(number),
            Self::Min => Op::Min(number),
            Self::Max => Op::Max(number),
        }
    }

    /// By arithmetic of 128 bits.
    fn whole(self, a: i64, b: i64) -> Option<i64> {
        let sum = i128::from(a) + i128::from(b);
        match self {
            Self::Add => (i128::from(i64::MIN)..=i128::from(i64::MAX)).contains(&sum).then_some(sum as i64),
            Self::Min => Some(a.min(b)),
            Self::Max => Some(a.max(b)),
        }
    }

    /// By sorting, with a number for what is none.
    fn fraction(self, a: f64, b: f64) -> f64 {
        let rank = |x: f64| (x.is_nan(), if x.is_nan() { 0.0 } else { x }, x.is_sign_positive());
        let mut both = [a, b];
        both.sort_by(|x, y| rank(*x).partial_cmp(&rank(*y)).unwrap());
        match self {
            Self::Add if (a + b).is_nan() => f64::from_bits(0x7ff8_0000_0000_0000),
            Self::Add => a + b,
            Self::Min => both[0],
            Self::Max => both[1],
        }
    }
}

fn combines() -> impl Strategy<Value = Combine> {
    prop_oneof![Just(Combine::Add), Just(Combine::Min), Just(Combine::Max)]
}

fn fractions() -> impl Strategy<Value = f64> {
    let special = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0, f64::MAX, f64::MIN_POSITIVE];
    prop_oneof![prop::sample::select(special.to_vec()), any::<f64>()]
}

/// Equal, all that is no number being one.
fn alike(bytes: &[u8], numbers: &[f64]) -> bool {
    let read = bytes.chunks_exact(8).map(|chunk| f64::from_le_bytes(chunk.try_into().unwrap()));
    bytes.len() == numbers.len() * 8
        && read.zip(numbers).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}

proptest! {
    #[test]
    fn whole_numbers_follow_the_model(steps in vec((combines(), (any::<i64>(), -9..9i64).prop_map(|(wide, narrow)| [wide, narrow])), 1..20)) {
        let mut model: Option<Vec<i64>> = None;
        let mut value: Option<Vec<u8>> = None;
        for (combine, operand) in steps {
            let expected: Option<Vec<i64>> = match &model {
                None => Some(operand.to_vec()),
                Some(numbers) => numbers.iter().zip(operand).map(|(a, b)| combine.whole(*a, b)).collect(),
            };
            let result = outcome(combine.op(Number::S64), None, Some(&longs(&operand)), value.as_deref());
            match expected {
                None => prop_assert_eq!(result, Err(UpdateError::Overflow)),
                Some(numbers) => {
                    prop_assert_eq!(result, to(&longs(&numbers)));
                    (value, model) = (Some(longs(&numbers)), Some(numbers));
                }
            }
        }
    }

    #[test]
    fn fractions_follow_the_model(steps in vec((combines(), [fractions(), fractions()]), 1..20)) {
        let mut model: Option<Vec<f64>> = None;
        let mut value: Option<Vec<u8>> = None;
        for (combine, operand) in steps {
            model = Some(match model {
                None => operand.to_vec(),
                Some(numbers) => numbers.iter().zip(operand).map(|(a, b)| combine.fraction(*a, b)).collect(),
            });
            let result = outcome(combine.op(Number::F64), None, Some(&doubles(&operand)), value.as_deref());
            let Ok(Outcome::To(bytes)) = result else { panic!("floats of one shape always combine: {result:?}") };
            prop_assert!(alike(&bytes, model.as_ref().unwrap()), "{:?} {:?}", bytes, model);
            value = Some(bytes);
        }
    }

    #[test]
    fn appended_items_follow_the_model(items in vec((vec(any::<u8>(), 0..5), 1..5u32), 1..20)) {
        let mut model: Vec<Vec<u8>> = Vec::new();
        let mut value: Option<Vec<u8>> = None;
        for (item, items_max) in items {
            let result = outcome(Op::Append { items_max }, None, Some(&item), value.as_deref());
            model.push(item);
            model.drain(..model.len().saturating_sub(items_max as usize));
            let bytes: Vec<u8> =
                model.iter().flat_map(|item| [&(item.len() as u32).to_le_bytes(), item.as_slice()].concat()).collect();
            prop_assert_eq!(result, to(&bytes));
            value = Some(bytes);
        }
    }

    #[test]
    fn no_bytes_make_an_update_panic(
        op in prop_oneof![
            Just(Op::Add(Number::S64)), Just(Op::Add(Number::F32)), Just(Op::Min(Number::F64)), Just(Op::Max(Number::F32)),
            Just(Op::CompareAndPut), any::<u32>().prop_map(|items_max| Op::Append { items_max }),
        ],
        bytes in [prop::option::of(vec(any::<u8>(), 0..20)), prop::option::of(vec(any::<u8>(), 0..20)), prop::option::of(vec(any::<u8>(), 0..20))],
    ) {
        let [expected, operand, current] = &bytes;
        _ = outcome(op, expected.as_deref(), operand.as_deref(), current.as_deref());
    }
}
