//! Accepted numbers in meta: read as the nearest double, written as ECMAScript does (RFC 8785
//! §3.2.2.3). Always raw: a general reader may miss the last digit, and a writer has its own style.

use super::metas::raw;
use super::vectors::Case;

/// A name, literals, and how they are written in canonical form.
const NUMBERS: &[(&str, &str, &str)] = &[
    ("number-zero", "0", "0"),
    ("number-minus-zero", "-0", "0"),
    ("number-minus-zero-with-fraction", "-0.0", "0"),
    ("number-zero-in-other-spellings", "[0.0,0e5,0E-5,-0e+0,0.000]", "[0,0,0,0,0]"),
    ("number-one-with-fraction", "1.0", "1"),
    ("number-with-capital-exponent", "1E+2", "100"),
    ("number-same-in-other-spellings", "[1.50,15e-1,0.15E1,1500e-3]", "[1.5,1.5,1.5,1.5]"),
    ("number-exponent-with-leading-zeros", "[1e0000000001,-1E-0]", "[10,-1]"),
    ("number-largest-integer", "9007199254740991", "9007199254740991"),
    ("number-smallest-integer", "-9007199254740991", "-9007199254740991"),
    // Only an integer literal claims to be exact; with a fraction it is the nearest double.
    ("number-above-the-integers", "9007199254740992.0", "9007199254740992"),
    ("number-half-way-rounds-to-even", "9007199254740993.0", "9007199254740992"),
    ("number-just-over-half-way", "9007199254740993.00000000000000000001", "9007199254740994"),
    ("number-1e20", "1e20", "100000000000000000000"),
    ("number-1e21", "1e21", "1e+21"),
    ("number-below-1e21", "9.999999999999999e20", "999999999999999900000"),
    ("number-21-digits", "1.2345678901234568e20", "123456789012345680000"),
    ("number-two-to-the-68", "2.9514790517935283e20", "295147905179352830000"),
    (
        "number-around-1e23",
        "[9.999999999999997e22,1e23,1.0000000000000001e23]",
        "[9.999999999999997e+22,1e+23,1.0000000000000001e+23]",
    ),
    ("number-a-millionth", "[0.000001,1e-6]", "[0.000001,0.000001]"),
    ("number-below-a-millionth", "9.999999999999997e-7", "9.999999999999997e-7"),
    ("number-1e-7", "[1e-7,0.0000001]", "[1e-7,1e-7]"),
    ("number-negative-and-small", "-0.0000033333333333333333", "-0.0000033333333333333333"),
    ("number-largest-double", "1.7976931348623157e308", "1.7976931348623157e+308"),
    ("number-rounds-down-to-the-largest", "-1.7976931348623158e308", "-1.7976931348623157e+308"),
    ("number-smallest-double", "[5e-324,-5e-324]", "[5e-324,-5e-324]"),
    ("number-rounds-up-to-the-smallest", "2.5e-324", "5e-324"),
    ("number-rounds-down-to-zero", "[2.4e-324,1e-400,-1e-400]", "[0,0,0]"),
    (
        "number-around-the-smallest-normal",
        "[2.2250738585072014e-308,2.2250738585072011e-308]",
        "[2.2250738585072014e-308,2.225073858507201e-308]",
    ),
    ("number-too-many-digits", "333333333.33333329", "333333333.3333333"),
    (
        "number-neighbours",
        "[333333333.3333332,333333333.33333325,333333333.3333334,333333333.3333343]",
        "[333333333.3333332,333333333.33333325,333333333.3333334,333333333.3333343]",
    ),
    ("number-shortest-digits-round-to-even", "1424953923781206.25", "1424953923781206.2"),
    (
        "number-decimal-fractions",
        "[4.35,0.1,0.2,0.30000000000000004]",
        "[4.35,0.1,0.2,0.30000000000000004]",
    ),
    (
        "number-exact-value-of-a-tenth",
        "0.1000000000000000055511151231257827021181583404541015625",
        "0.1",
    ),
];

pub(super) fn cases() -> Vec<Case> {
    let with_key = |number: &str| format!(r#"{{"n":{number}}}"#);
    NUMBERS
        .iter()
        .map(|(name, given, canonical)| raw(name, &with_key(given), &with_key(canonical)))
        .collect()
}
