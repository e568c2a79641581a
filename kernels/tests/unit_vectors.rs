//! Single operations against vectors from other implementations.

mod support;

use support::*;
use tensorfold_kernels::cpu::CpuDevice;
use tensorfold_kernels::device::{DeltaInputs, DeltaLane, DeltaTarget, Device, Product};
use tensorfold_kernels::weights::{ElementType, Packing, TensorView, Tensors};
use tensorfold_plugin_api::model_spec::GatedDeltaSpec;

fn device() -> CpuDevice {
    CpuDevice::new(2).unwrap()
}

#[test]
fn packed_products_match_mlx() {
    let vectors = Vectors::open("goldens/unit/quant.safetensors");
    let x = vectors.f32("x");
    let ids: Vec<u32> = (0..5).collect();
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            let name = |part: &str| format!("affine.b{bits}.g{group}.{part}");
            let mut tensors = Tensors::new();
            for (part, canonical) in [("weight", "w"), ("scales", "w.scales"), ("biases", "w.biases")] {
                let (dtype, shape, bytes) = vectors.bytes(&name(part));
                let element = match dtype {
                    safetensors::Dtype::U32 => ElementType::U32,
                    safetensors::Dtype::BF16 => ElementType::Bf16,
                    _ => ElementType::F32,
                };
                let packed = (part == "weight").then_some(Packing { bits, group });
                tensors.insert(canonical, TensorView { element, shape, packed, bytes });
            }
            let mut device = device();
            let matrix = device.matrix(tensors.matrix("w", 5, 256).unwrap()).unwrap();
            let mut y = device.rows(3, 5).unwrap();
            let product = Product { matrix: &matrix, bias: None, out: &mut y };
            device.multiply(3, &x, &mut [product]).unwrap();
            let exact = vectors.f32(&name("y_f32"));
            let size = exact.iter().fold(1.0f32, |size, y| size.max(y.abs()));
            assert!(difference(&y, &exact) <= 2e-5 * size, "{bits} bits, groups of {group}: {y:?}");
            let mut rows = device.rows(5, 256).unwrap();
            device.embed(&matrix, &ids, &mut rows).unwrap();
            assert!(difference(&rows, &vectors.f32(&name("dequant_f32"))) <= 1e-6);
        }
    }
}

#[test]
fn the_gated_delta_rule_matches_over_seventy_tokens() {
    let vectors = Vectors::open("goldens/unit/ops.safetensors");
    let spec = GatedDeltaSpec {
        key_heads: 1,
        value_heads: 3,
        key_head_size: 128,
        value_head_size: 128,
        convolution_kernel: 4,
    };
    let (q, k, v) = (vectors.f32("gdn.q"), vectors.f32("gdn.k"), vectors.f32("gdn.v"));
    let mut mixed = Vec::new();
    for t in 0..70 {
        mixed.extend_from_slice(&q[t * 128..][..128]);
        mixed.extend_from_slice(&k[t * 128..][..128]);
        mixed.extend_from_slice(&v[t * 384..][..384]);
    }
    let mut device = device();
    let (mut a, mut b) = (vectors.f32("gdn.a"), vectors.f32("gdn.b"));
    let (a_log, dt_bias) = (vectors.f32("gdn.A_log"), vectors.f32("gdn.dt_bias"));
    device.delta_inputs(70, &spec, &mut mixed, &mut a, &mut b, &a_log, &dt_bias).unwrap();
    let log_decays: Vec<f32> = a.iter().map(|decay| decay.ln()).collect();
    assert!(difference(&log_decays, &vectors.f32("gdn.g")) <= 1e-4);
    assert!(difference(&b, &vectors.f32("gdn.beta")) <= 1e-6);

    let mut state = device.delta_state(&spec).unwrap();
    state.set_memory(&vectors.f32("gdn.S0"));
    let mut next = device.delta_state(&spec).unwrap();
    let mut out = device.rows(70, 384).unwrap();
    let mut lanes = [DeltaLane { rows: 0..70, state: &state, target: DeltaTarget::State(&mut next) }];
    let inputs = DeltaInputs { mixed: &mixed, decays: &a, strengths: &b };
    device.recur(&spec, &mut lanes, inputs, &mut out).unwrap();
    assert!(difference(&out, &vectors.f32("gdn.o")) <= 1e-4);
    assert!(difference(&next.memory()[..128 * 128], &vectors.f32("gdn.S_head0")) <= 1e-4);
}

#[test]
fn the_convolution_matches_and_keeps_its_last_rows() {
    const CHANNELS: usize = 24;
    const ROWS: usize = 6;
    const BEFORE: usize = 3;
    let vectors = Vectors::open("goldens/unit/ops.safetensors");
    // Heads are multiples of a vector, so half of the channels stay empty.
    let spec = GatedDeltaSpec {
        key_heads: 1,
        value_heads: 1,
        key_head_size: 16,
        value_head_size: 16,
        convolution_kernel: BEFORE as u32 + 1,
    };
    let width = spec.channels() as usize;
    let widened = |rows: &[f32]| -> Vec<f32> {
        rows.chunks(CHANNELS).flat_map(|row| [row, &vec![0.0; width - CHANNELS]].concat()).collect()
    };
    let filter = vectors.f32("conv.w");
    let by_tap: Vec<f32> = (0..=BEFORE)
        .flat_map(|tap| (0..CHANNELS).map(move |c| (tap, c)))
        .map(|(tap, c)| filter[c * 4 + tap])
        .collect();
    let taps = widened(&by_tap);
    let mut device = device();
    let mut convolve = |state: &_, rows: &[f32]| {
        let mut next = device.delta_state(&spec).unwrap();
        let mut out = vec![0.0; rows.len()];
        let target = DeltaTarget::State(&mut next);
        let mut lanes = [DeltaLane { rows: 0..rows.len() / width, state, target }];
        device.convolve(&spec, &mut lanes, &rows.to_vec(), &taps, &mut out).unwrap();
        (next, out)
    };
    let fresh = self::device().delta_state(&spec).unwrap();
    // What came before are the rows that a lane had been fed.
    let (state, _) = convolve(&fresh, &widened(&vectors.f32("conv.state")));
    let (state, out) = convolve(&state, &widened(&vectors.f32("conv.x")));
    assert_eq!(out.len(), ROWS * width);
    assert!(difference(&out, &widened(&vectors.f32("conv.y"))) <= 1e-5);
    assert_eq!(state.window(), widened(&vectors.f32("conv.state_out")));
}

#[test]
fn norms_match() {
    let vectors = Vectors::open("goldens/unit/ops.safetensors");
    let (x, w, z) = (vectors.f32("norm.x"), vectors.f32("norm.w"), vectors.f32("norm.z"));
    let mut device = device();
    let mut out = device.rows(4, 128).unwrap();
    device.norm(4, &x, &w, 1e-6, &mut out).unwrap();
    assert!(difference(&out, &vectors.f32("norm.plain")) <= 1e-5);
    let centred: Vec<f32> = w.iter().map(|w| w + 1.0).collect();
    device.norm(4, &x, &centred, 1e-6, &mut out).unwrap();
    assert!(difference(&out, &vectors.f32("norm.centred")) <= 1e-5);
    let mut gated = x.clone();
    device.gated_norm(4, 1, &mut gated, &z, &w, 1e-6).unwrap();
    assert!(difference(&gated, &vectors.f32("norm.gated")) <= 1e-5);
}

#[test]
fn rotation_matches_at_near_and_far_positions() {
    let vectors = Vectors::open("goldens/unit/ops.safetensors");
    let positions: Vec<usize> = vectors.f32("rope.pos").iter().map(|&p| p as usize).collect();
    for (name, theta, dimensions) in
        [("rope.partial64_theta1e7", 1e7f64, 64), ("rope.full256_theta1e5", 1e5, 256)]
    {
        let half = dimensions / 2;
        let frequencies: Vec<f64> =
            (0..half).map(|i| theta.powf(-2.0 * i as f64 / dimensions as f64)).collect();
        let mut device = device();
        let mut angles = device.rows(5, dimensions).unwrap();
        device.rotary_angles(&positions, &frequencies, &mut angles).unwrap();
        let mut x = vectors.f32("rope.x");
        device.rotate(5, 2, 256, half, &angles, &mut x).unwrap();
        assert!(difference(&x, &vectors.f32(name)) <= 1e-4, "{name}");
    }
}

#[test]
fn routing_matches_and_ties_go_to_the_lower_expert() {
    let vectors = Vectors::open("goldens/unit/ops.safetensors");
    let (logits, weights) = (vectors.f32("router.logits"), vectors.f32("router.weights"));
    let tied = |row: &[f32]| (1..16).any(|i| row[..i].contains(&row[i]));
    assert!(logits.chunks(16).any(tied), "the vectors hold ties");
    let mut device = device();
    let mut routes = device.routes(4, 16, 4).unwrap();
    device.route(4, 16, 4, &logits, &mut routes).unwrap();
    let (ids, got): (Vec<u32>, Vec<f32>) = device.read_routes(&routes).unwrap().into_iter().unzip();
    assert_eq!(ids, vectors.u32("router.ids"));
    assert!(difference(&got, &weights) <= 1e-6);
}
