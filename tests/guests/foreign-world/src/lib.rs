//! A sound component that implements another world than `wasmill:operator/operator`: the host must refuse it by name.

wit_bindgen::generate!({ path: "wit", world: "tool" });

struct Tool;

impl Guest for Tool {
    fn run(input: String) -> String {
        input
    }
}

export!(Tool);
