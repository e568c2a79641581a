//! Folders from strangers: whatever stands in them, nothing panics, and what is accepted is sound.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Values that a careless or a hostile hand may write.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_u64..40).prop_map(Value::from),
        Just(json!(u64::MAX)),
        Just(json!(u32::MAX)),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z_]{0,8}".prop_map(Value::from),
        prop::collection::vec(any::<i32>(), 0..6).prop_map(|list| json!(list)),
        Just(json!({})),
        Just(json!(["sliding_attention", "full_attention"])),
        Just(json!({"rope_type": "linear", "factor": 2})),
    ]
}

fn any_target() -> impl Strategy<Value = Target> {
    (any::<u32>(), any::<u32>(), 0_u32..40, any::<u32>()).prop_map(
        |(hidden_size, vocabulary, layers, embedding_rows)| Target {
            hidden_size,
            vocabulary,
            layers,
            embedding_rows,
        },
    )
}

proptest! {
    #[test]
    fn a_changed_configuration_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..4),
        target in any_target(),
        drafts in proptest::option::of(any::<u32>()),
    ) {
        let survey = configured(&golden("v2-scaled"), |config| {
            let own: Vec<String> = config["dflash_config"].as_object().unwrap().keys().cloned().collect();
            let top: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
            for (index, value) in &changes {
                let index = index.index(own.len() + top.len());
                match own.get(index) {
                    Some(key) if config["dflash_config"].is_object() => {
                        config["dflash_config"][key] = value.clone();
                    }
                    Some(_) => {}
                    None => config[&top[index - own.len()]] = value.clone(),
                }
            }
        });
        prop_assert_eq!(survey.spec.is_some(), survey.faults().is_empty(), "{}", wrong(&survey));
        if let Some(spec) = &survey.spec {
            prop_assert!(spec.validate().is_ok());
        }
        let line = one_line(&survey.faults_with(target, drafts));
        prop_assert!(!line.contains('\n'), "{line}");
    }

    #[test]
    fn a_changed_header_is_read_or_refused(position in 0_usize..4000, byte: u8, cut in 0_usize..64) {
        let root = copy(&golden("v1-full"), |_| {}, |mut bytes| {
            bytes[position] = byte;
            bytes.truncate(bytes.len() - cut);
            Some(bytes)
        });
        let survey = survey(root.path()).unwrap();
        prop_assert_eq!(survey.spec.is_some(), survey.faults().is_empty(), "{}", wrong(&survey));
        prop_assert_eq!(survey.spec.is_some(), Drafter::open(root.path()).is_ok());
    }
}
