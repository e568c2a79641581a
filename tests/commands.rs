//! The commands that need no plugin's code: what they print, how they end, and that they open nothing of a GPU.

mod support;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::trace::{Trace, traced};
use support::{Invocation, Outcome, Sandbox, built_with_the_workspace, demo_drafter, demo_model, workspace};

/// The program with the plugins of this tree.
fn tree(invocation: Invocation) -> Invocation {
    invocation.without_env("TENSORFOLD_PLUGINS_FILE")
}

fn run(sandbox: &Sandbox, words: &[&str]) -> Outcome {
    tree(sandbox.tensorfold(words)).run()
}

fn tiny(name: &str) -> PathBuf {
    workspace().join("tests/goldens").join(name)
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn the_version_and_the_help_are_on_stdout_and_end_well() {
    let sandbox = Sandbox::new();
    for words in [&["--version"][..], &["-V"]] {
        let outcome = run(&sandbox, words);
        outcome.exits(0);
        assert_eq!(
            (outcome.stdout.as_str(), outcome.stderr.as_str()),
            (concat!("tensorfold ", env!("CARGO_PKG_VERSION"), "\n"), "")
        );
    }
    for (words, parts) in [
        (&["--help"][..], &["serve", "models", "info", "capabilities", "plugins", "--backend"][..]),
        (&["-h"], &["serve", "plugins"]),
        (
            &["serve", "--help"],
            &["usage: tensorfold [--backend NAME] serve MODEL", "--port PORT", "--drafter"],
        ),
        (&["serve", "some/model", "-h"], &["--max-tokens N"]),
        (&["models", "--help"], &["--json"]),
        (&["info", "--help"], &["MODEL", "--json"]),
        (&["capabilities", "--help"], &["--json"]),
        (&["plugins", "--help"], &["list", "show", "check", "why", "lock"]),
        (&["plugins", "check", "--help"], &["--no-probe"]),
    ] {
        let outcome = run(&sandbox, words);
        outcome.exits(0);
        assert_eq!(outcome.stderr, "", "{words:?}");
        for part in parts {
            assert!(outcome.stdout.contains(part), "{words:?}: no {part:?} in\n{}", outcome.stdout);
        }
    }
}

#[test]
fn the_help_of_serve_tells_what_a_named_backend_takes() {
    let sandbox = Sandbox::new();
    let plain = run(&sandbox, &["serve", "--help"]);
    for words in [&["serve", "--backend", "cpu", "--help"][..], &["--backend", "cpu", "serve", "--help"]] {
        let outcome = run(&sandbox, words);
        outcome.exits(0);
        for part in ["Backend cpu (backend-cpu ", "--opt cpu.threads=INTEGER", "model families", "qwen3_5"] {
            assert!(outcome.stdout.contains(part) && !plain.stdout.contains("Backend cpu"), "{part}");
        }
    }
    // Without a name: the options of every installed one.
    for part in [
        "--threads N",
        "Options of backend cpu (backend-cpu):\n  --opt cpu.",
        "\n  --opt cpu.threads=INTEGER",
        "[a whole number from 0 to 1024; default: 0]",
    ] {
        assert!(plain.stdout.contains(part), "no {part:?} in\n{}", plain.stdout);
    }
    // What keeps plugins from being found does not keep the help from being read.
    let broken = sandbox.file("broken.toml", "[search\n");
    let outcome = tree(sandbox.tensorfold(["serve", "--help"])).arg("--plugins-file").arg(&broken).run();
    outcome.exits(0);
    assert!(outcome.stdout.contains("--port PORT"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("Installed backends: ") && outcome.stdout.contains("broken.toml"));
    let rocm = run(&sandbox, &["serve", "--backend", "rocm", "--help"]);
    assert!(rocm.stdout.contains("Backend hip (backend-hip"), "{}", rocm.stdout);
    assert!(!rocm.stdout.contains("cpu.threads"), "options of another backend");
    run(&sandbox, &["serve", "--backend", "abacus", "--help"]).refused_with(&[
        "--backend abacus: no plugin answers to this name",
        "cpu",
        "hip",
        "rocm",
    ]);
}

#[test]
fn models_lists_who_runs_what() {
    let sandbox = Sandbox::new();
    let outcome = run(&sandbox, &["models"]);
    outcome.exits(0);
    let line = |start: &str| outcome.stdout.lines().find(|line| line.starts_with(start)).map(str::to_owned);
    let row = line("qwen3_5 ").unwrap_or_else(|| outcome.fail("no row for qwen3_5"));
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns[..2], ["qwen3_5", "cpu"], "{row}");
    assert!(columns.contains(&"bf16") && columns.contains(&"mlx-q4"), "{row}");
    for backend in ["cuda", "hip", "mlx"] {
        assert!(line(&format!("{backend} runs no model family yet")).is_some(), "{}", outcome.stdout);
    }
    let document = run(&sandbox, &["models", "--json"]).json();
    let models = document["models"].as_array().unwrap();
    let known = models.iter().find(|model| model["family"] == "qwen3_5").unwrap();
    assert_eq!((&known["backend"], &known["plugin"]), (&json!("cpu"), &json!("backend-cpu")));
    assert_eq!(run(&sandbox, &["models", "--json", "--backend", "rocm"]).json()["models"], json!([]));
    run(&sandbox, &["models", "--backend", "abacus"]).refused_with(&["abacus"]);
    // Without plugins there is nothing to list, which is no failure.
    let empty = sandbox.tensorfold(["models"]).run();
    empty.exits(0);
    assert!(empty.stdout.contains("no installed plugin runs a model; see tensorfold plugins list --all"));
    assert_eq!(sandbox.tensorfold(["models", "--json"]).run().json()["models"], json!([]));
}

#[test]
fn info_tells_what_a_model_is_and_who_runs_it() {
    let sandbox = Sandbox::new();
    let bf16 = tiny("tiny-qwen3_5");
    let four_bits = tiny("tiny-qwen3_5-mlx-4bit");
    let layers = "4 of width 128: 3 Gated DeltaNet, 1 attention";
    let demo_layers = "12 of width 384: 9 Gated DeltaNet, 3 attention";
    for (model, format, head, parameters, layers) in [
        (demo_model(), "mlx-q4g64", "in a side file, mlx-q4g64", "24.3 million", demo_layers),
        (bf16, "bf16", "in the checkpoint, bf16", "2.1 million", layers),
        (four_bits, "mlx-q4g64", "in a side file, mlx-q4g64", "2.1 million", layers),
    ] {
        let outcome = run(&sandbox, &["info", &display(&model)]);
        outcome.exits(0);
        let name = model.file_name().unwrap().to_str().unwrap();
        for (key, value) in [
            ("model", name),
            ("folder", &display(&model)),
            ("licence", "not stated"),
            ("family", "qwen3_5"),
            ("layers", layers),
            ("formats", format),
            ("own head", head),
            ("context", "4096 tokens"),
            ("parameters", parameters),
            ("cpu", "can run it"),
        ] {
            let line = format!("{key:<12}{value}");
            assert!(outcome.stdout.lines().any(|found| found == line), "no {line:?} in\n{}", outcome.stdout);
        }
        let hip = outcome.stdout.lines().find(|line| line.starts_with("hip ")).unwrap();
        assert!(hip.contains("no: the HIP engine has no backend for qwen3_5 checkpoints yet"), "{hip}");
        let document = run(&sandbox, &["info", &display(&model), "--json"]).json();
        assert_eq!(document["name"], name);
        assert_eq!(document["formats"], json!([format]));
        assert_eq!((&document["mtp"], &document["problem"]), (&json!(true), &Value::Null));
        let backends = document["backends"].as_array().unwrap();
        let runs = |name: &str| &backends.iter().find(|backend| backend["backend"] == name).unwrap()["runs"];
        assert_eq!(
            [runs("cpu"), runs("cuda"), runs("hip"), runs("mlx")],
            [&json!(true), &json!(false), &json!(false), &json!(false)]
        );
    }
    // The folder that one stands in has its own name.
    let outcome = tree(sandbox.tensorfold(["info", "."]).in_folder(&demo_model())).run();
    outcome.exits(0);
    assert!(outcome.stdout.starts_with("model       demo\n"), "{}", outcome.stdout);
    let document = run(&sandbox, &["info", &display(&demo_model()), "--json", "--backend", "cpu"]).json();
    assert_eq!(document["backends"].as_array().unwrap().len(), 1);
}

#[test]
fn info_describes_every_family() {
    let sandbox = Sandbox::new();
    let has = |name: &str, lines: &[&str]| {
        let outcome = run(&sandbox, &["info", &display(&tiny(name))]);
        outcome.exits(0);
        for line in lines {
            assert!(outcome.stdout.lines().any(|found| found == *line), "no {line:?} in\n{}", outcome.stdout);
        }
        assert!(!outcome.stdout.contains("problem"), "{}", outcome.stdout);
    };
    has(
        "tiny-llama",
        &[
            "family      llama",
            "layers      3 of width 192: attention",
            "attention   3 heads of 64, keys and values 1",
            "rope        theta 100000, all dimensions, not scaled",
            "mlp         320 wide",
            "vocabulary  1000 ids in 1024 rows; the head is the embedding",
            "own head    none",
            "cpu         can run it",
        ],
    );
    has(
        "tiny-qwen2",
        &["attention   2 heads of 64, keys and values 1, with biases", "cpu         can run it"],
    );
    has(
        "tiny-qwen3-mlx-4bit",
        &["attention   2 heads of 128, keys and values 1, normed per head", "cpu         can run it"],
    );
    has(
        "tiny-qwen3_5_moe-mlx-4bit",
        &[
            "family      qwen3_5_moe",
            "rope        theta 10000000, 64 of 256 dimensions, not scaled",
            "delta       keys 1 of 128, values 2 of 128",
            "experts     8, 2 for each token, 64 wide, and a shared one 64 wide",
            "formats     mlx-q4g64 99.5%, mlx-q8g64 0.5%",
            "own head    in a side file, mlx-q4g64 mlx-q8g64",
            "cpu         can run it",
        ],
    );
    let document = run(&sandbox, &["info", &display(&tiny("tiny-qwen3_5_moe")), "--json"]).json();
    let description = &document["description"];
    assert_eq!(description["layers"], json!({ "attention": 1, "gated_delta": 3 }));
    assert_eq!(description["feed_forward"]["experts_per_token"], 2);
    assert_eq!(document["tokenizer_size"], 1009);
    assert_eq!(document["kind"], "model");
}

#[test]
fn info_shows_the_licence_and_nothing_that_paints() {
    let sandbox = Sandbox::new();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        sandbox.file(&format!("m/{name}"), std::fs::read(tiny("tiny-llama").join(name)).unwrap());
    }
    sandbox.file("m/README.md", "---\nlanguage: en\nlicense: apache-2.0\n---\n# m\n");
    let folder = display(&sandbox.path().join("m"));
    let outcome = run(&sandbox, &["info", &folder]);
    assert!(outcome.stdout.contains("\nlicence     apache-2.0\n"), "{}", outcome.stdout);
    // The tokenizer is not needed to tell the rest.
    std::fs::remove_file(sandbox.path().join("m/tokenizer.json")).unwrap();
    let outcome = run(&sandbox, &["info", &folder]);
    let vocabulary = "vocabulary  1024 rows; no tokenizer.json says how many ids; the head is the embedding";
    assert!(outcome.stdout.contains(vocabulary), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("/m/tokenizer.json is missing: "), "{}", outcome.stdout);
    let config = std::fs::read_to_string(tiny("tiny-llama").join("config.json")).unwrap();
    let painted = config.replace("\"model_type\": \"llama\"", "\"model_type\": \"\\u001b[31m\\nfoo\"");
    assert_ne!(painted, config);
    sandbox.file("m/config.json", painted);
    let outcome = run(&sandbox, &["info", &folder]);
    outcome.exits(0);
    assert!(!outcome.stdout.contains('\u{1b}') && !outcome.stdout.contains("\nfoo"), "{}", outcome.stdout);
}

#[test]
fn weights_of_other_forms_are_refused_with_what_to_do() {
    let sandbox = Sandbox::new();
    let file = display(&sandbox.file("m.gguf", "GGUF"));
    let convert = format!("tensorfold convert {file} OUTPUT");
    let only = |name: &str| {
        sandbox.file(&format!("{name}-only/{name}"), "x");
        display(&sandbox.path().join(format!("{name}-only")))
    };
    for (model, parts) in [
        (file.clone(), &["is a GGUF file", convert.as_str()][..]),
        (only("q4.gguf"), &["config.json is missing", "q4.gguf is a GGUF file", "tensorfold convert"]),
        (
            only("pytorch_model.bin"),
            &["pytorch_model.bin holds weights as PyTorch pickles them", "safetensors"],
        ),
    ] {
        run(&sandbox, &["info", &model]).refused_with(parts);
        run(&sandbox, &["serve", &model, "--backend", "cpu", "--port", "0"]).refused_with(parts);
    }
    // The same beside a configuration.
    let config = std::fs::read(tiny("tiny-llama").join("config.json")).unwrap();
    for (name, part) in [("q4.gguf", "q4.gguf is a GGUF file"), ("pytorch_model.bin", "PyTorch pickles")] {
        let folder = only(name);
        std::fs::write(format!("{folder}/config.json"), &config).unwrap();
        run(&sandbox, &["serve", &folder, "--backend", "cpu", "--port", "0"])
            .refused_with(&["it holds no model.safetensors", part]);
    }
}

#[test]
fn info_says_what_is_wrong_with_a_model() {
    let sandbox = Sandbox::new();
    run(&sandbox, &["info", "/no/such/model"]).refused_with(&["/no/such/model is neither a directory nor"]);
    run(&sandbox, &["info", "owner/name"]).refused_with(&["owner/name is not in the Hugging Face cache"]);
    let here = display(&sandbox.here());
    run(&sandbox, &["info", &here]).refused_with(&["config.json is missing: a checkpoint is a folder with"]);
    let config = std::fs::read(tiny("tiny-qwen3_5").join("config.json")).unwrap();
    let weights = std::fs::read(tiny("tiny-qwen3_5").join("model.safetensors")).unwrap();
    sandbox.file("torn/config.json", &config[..config.len() / 2]);
    let torn = display(&sandbox.path().join("torn"));
    run(&sandbox, &["info", &torn]).refused_with(&["torn/config.json does not parse"]);
    // What can be told is told, with the problem beside it, and nobody is said to run it.
    for (name, held, part) in [
        ("none", None, "it holds no model.safetensors"),
        ("cut", Some(100_000), "it may be incomplete"),
        ("stub", Some(5), "it has 5 bytes"),
    ] {
        sandbox.file(&format!("{name}/config.json"), &config);
        if let Some(bytes) = held {
            sandbox.file(&format!("{name}/model.safetensors"), &weights[..bytes]);
        }
        let folder = display(&sandbox.path().join(name));
        let outcome = run(&sandbox, &["info", &folder]);
        outcome.exits(0);
        let problem = outcome.stdout.lines().find(|line| line.starts_with("problem ")).map(str::to_owned);
        assert!(problem.is_some_and(|line| line.contains(part)), "{}", outcome.stdout);
        assert!(!outcome.stdout.contains("can run it"), "{}", outcome.stdout);
        let document = run(&sandbox, &["info", &folder, "--json"]).json();
        assert!(document["problem"].as_str().is_some_and(|problem| problem.contains(part)), "{document}");
        // To serve it ends with the same words.
        let serve = run(&sandbox, &["serve", &folder, "--backend", "cpu", "--port", "0"]);
        serve.refused_with(&[part]);
    }
}

#[test]
fn a_drafter_is_told_from_a_model() {
    let sandbox = Sandbox::new();
    let folder = display(&demo_drafter());
    let outcome = run(&sandbox, &["info", &folder]);
    outcome.exits(0);
    for line in [
        "drafter     demo-DFlash2\n",
        "holds       a DFlash2 drafter, for --drafter beside the model that it was made for\n",
        "block       8 rows: 7 drafts a round at most\n",
        "reads       the target's layers 1, 4, 7, 10\n",
        "target      12 layers of width 384, 8192 rows of vocabulary\n",
        "formats     bf16\n",
        "cpu         can run it\n",
        "hip         no: --drafter: the HIP engine runs no DFlash2 drafter yet; serve without --drafter\n",
    ] {
        assert!(outcome.stdout.contains(line), "{line}\n{}", outcome.stdout);
    }
    assert!(!outcome.stdout.contains("problem"), "{}", outcome.stdout);
    assert_eq!(outcome.stdout.matches("can run it").count(), 1, "{}", outcome.stdout);
    let document = run(&sandbox, &["info", &folder, "--json"]).json();
    let told = [&document["kind"], &document["drafter_kind"], &document["problem"], &document["supported"]];
    assert_eq!(told, [&json!("drafter"), &json!("dflash2"), &Value::Null, &json!(true)]);
    assert_eq!(document["description"]["taps"], json!([1, 4, 7, 10]));
    let first = workspace().join("tests/goldens/dflash/v1-full/drafter");
    let told = run(&sandbox, &["info", &display(&first)]).stdout;
    assert!(told.contains("hip         no: --drafter: the HIP engine runs no DFlash drafter yet;"), "{told}");
    let problem = "it is of a DFlash2 drafter, not of a model; name the model that it drafts for";
    run(&sandbox, &["serve", &folder, "--backend", "cpu", "--port", "0"]).refused_with(&[problem]);
}

#[test]
fn capabilities_state_every_drafter_kind_of_every_plugin() {
    let sandbox = Sandbox::new();
    let document = run(&sandbox, &["capabilities", "--json"]).json();
    assert_eq!((&document["schema"], &document["engine"]), (&json!(1), &json!("tensorfold")));
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(document["backends"], json!(["cpu", "cuda", "hip", "mlx"]));
    let plugins = document["plugins"].as_array().unwrap();
    assert_eq!(plugins.len(), 4);
    for plugin in plugins {
        let families = plugin["families"].as_object().unwrap();
        let facts = families.values().map(|family| &family["drafters"]).chain([&plugin["drafters"]]);
        for drafters in facts {
            for kind in ["mtp", "dflash", "dflash2"] {
                assert!(drafters[kind].is_boolean(), "{}: {kind}", plugin["id"]);
            }
        }
    }
    let hip = plugins.iter().find(|plugin| plugin["backend"] == "hip").unwrap();
    assert_eq!(hip["aliases"], json!(["rocm"]));
    assert_eq!([&hip["drafters"]["dflash"], &hip["drafters"]["dflash2"]], [&json!(false), &json!(false)]);
    let cpu = plugins.iter().find(|plugin| plugin["backend"] == "cpu").unwrap();
    assert!(cpu["families"]["qwen3_5"].is_object());
    let flags = document["serve"]["flags"].as_object().unwrap();
    assert!(flags.contains_key("--drafter") && flags.contains_key("--port"));
    assert!(flags["--tp"]["values"].is_array(), "{}", flags["--tp"]);
    // Text was never promised, so the switch is needed.
    let outcome = run(&sandbox, &["capabilities"]);
    is_usage_error(&outcome, "capabilities", "the following arguments are required: --json");
    let one = run(&sandbox, &["capabilities", "--json", "--backend", "rocm"]).json();
    assert_eq!(one["plugins"].as_array().unwrap().len(), 1);
}

#[track_caller]
fn is_usage_error(outcome: &Outcome, command: &str, message: &str) {
    outcome.exits(2);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let program = format!("tensorfold {command}").trim_end().to_owned();
    let wanted = format!("{program}: error: {message}");
    if lines.len() != 2 || !lines[0].starts_with("usage: tensorfold ") || lines[1] != wanted {
        outcome.fail(format!("wanted a line of usage and the line: {wanted}"));
    }
    assert_eq!(outcome.stdout, "");
}

#[test]
fn usage_errors_are_two_lines_and_status_2() {
    let sandbox = Sandbox::new();
    for (words, command, message) in [
        ("", "", "the following arguments are required: command (try tensorfold --help)"),
        ("dance", "", "argument command: invalid choice: 'dance'"),
        ("--colour", "", "unrecognized arguments: --colour"),
        ("serve", "serve", "the following arguments are required: model"),
        ("serve --port 80", "serve", "the following arguments are required: model"),
        ("serve m --colour red", "serve", "unrecognized arguments: --colour"),
        ("serve m n", "serve", "unrecognized arguments: n"),
        ("serve m --port", "serve", "argument --port: expected one argument"),
        ("serve m --port 65536", "serve", "argument --port: invalid port: '65536'"),
        ("serve m --port=x", "serve", "argument --port: invalid port: 'x'"),
        ("serve m --top-k many", "serve", "argument --top-k: invalid int value: 'many'"),
        ("serve m --temperature warm", "serve", "argument --temperature: invalid float value: 'warm'"),
        ("serve m --tp 3", "serve", "argument --tp: invalid choice: '3'"),
        ("serve m --tp 2 --rank 2", "serve", "argument --rank: 2 is not below --tp 2"),
        ("serve m --thinking=yes", "serve", "argument --thinking: ignored explicit argument 'yes'"),
        ("serve m --mtp-drafts 65", "serve", "argument --mtp-drafts: a count from 0 to 64: '65'"),
        ("models all", "models", "unrecognized arguments: all"),
        ("info", "info", "the following arguments are required: model"),
        (
            "--backend cpu serve m --backend hip",
            "serve",
            "argument --backend: one backend at a time, not 'cpu' and 'hip'",
        ),
    ] {
        let words: Vec<&str> = words.split_whitespace().collect();
        is_usage_error(&run(&sandbox, &words), command, message);
    }
    // A plugin that does not take an option is found out after the syntax and tells it the same way.
    for (words, part) in [
        ("serve m --backend cpu --policy a=b", "--policy is not served by the CPU engine"),
        ("serve m --backend rocm --vision", "--vision is not served"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let outcome = run(&sandbox, &words);
        outcome.exits(2);
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    assert_eq!(sandbox.traces_left(), Vec::<PathBuf>::new());
}

#[track_caller]
fn opens_nothing_of_a_gpu(trace: &Trace) {
    let libraries =
        ["libcuda", "libnvidia", "libamdhip", "libhsa", "librccl", "libnccl", "libmlx", "libze_loader"];
    let names = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for path in trace.opened() {
        let name = names(&path);
        assert!(!libraries.iter().any(|library| name.starts_with(library)), "opened {}", path.display());
    }
    for path in trace.executable_files() {
        let name = names(&path);
        assert!(!name.contains("tensorfold_backend"), "mapped {} for execution", path.display());
    }
    trace.touched_no_device();
    assert_eq!(trace.network(), Vec::<&str>::new());
    assert_eq!(trace.changes_to_files(), Vec::<String>::new());
    assert_eq!(trace.programs().len(), 1, "started {:?}", trace.programs());
}

#[test]
fn telling_opens_no_driver_maps_no_plugin_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let demo = display(&demo_model());
    for words in [
        &["--version"][..],
        &["--help"],
        &["serve", "--help"],
        &["serve", "--help", "--backend", "rocm"],
        &["models"],
        &["models", "--json"],
        &["info", &demo],
        &["info", &demo, "--json"],
        &["capabilities", "--json"],
        &["serve"],
        &["serve", &demo, "--backend", "cuda", "--drafter", "z-lab/Qwen3.8-27B-DFlash2"],
    ] {
        let trace = traced(&sandbox, |command| tree(command.args(words)));
        assert!(trace.outcome.status.code().is_some(), "{words:?} ended by a signal");
        opens_nothing_of_a_gpu(&trace);
    }
    assert_eq!(sandbox.traces_left(), Vec::<PathBuf>::new());
    // The same instrument sees a plugin that is tried.
    let library = built_with_the_workspace("tensorfold_backend_cpu").canonicalize().unwrap();
    let trace = traced(&sandbox, |command| tree(command.args(["plugins", "check", "backend-cpu"])));
    trace.outcome.exits(0);
    assert!(
        trace.executable_files().iter().any(|path| path.file_name() == library.file_name()),
        "{:?}",
        trace.executable_files()
    );
}
