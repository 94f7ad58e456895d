"""Makes the small random Gemma 4 checkpoints of test/fixtures/reference with the transformers implementation (float32, weights rounded to bf16),
and what it computes for them: logits, hidden states, greedy tokens. Needs torch, transformers >= 5.17 and safetensors; run: python make.py OUT
"""
import json, os, sys
import torch
from safetensors.torch import save_file
import transformers
from transformers.models.gemma4 import modeling_gemma4, configuration_gemma4

S, G = "sliding_attention", "full_attention"
BASE = dict(
    vocab_size=128, vocab_size_per_layer_input=128, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True, layer_types=[S, S, S, G], num_hidden_layers=4,
    sliding_window=16, max_position_embeddings=16384, hidden_size_per_layer_input=0, num_kv_shared_layers=0, use_double_wide_mlp=False,
    enable_moe_block=False, num_experts=None, top_k_experts=None, moe_intermediate_size=None, final_logit_softcapping=30.0,
    hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, tie_word_embeddings=True, bos_token_id=2, eos_token_id=1, pad_token_id=0,
    rope_parameters={G: dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25), S: dict(rope_type="default", rope_theta=1e4)},
)
MODELS = {
    "dense": {},
    "moe": dict(enable_moe_block=True, num_experts=8, top_k_experts=2, moe_intermediate_size=32, intermediate_size=96),
    "many-experts": dict(enable_moe_block=True, num_experts=128, top_k_experts=8, moe_intermediate_size=8, hidden_size=32, intermediate_size=64, layer_types=[S, G], num_hidden_layers=2),
    "ple": dict(attention_k_eq_v=False, num_key_value_heads=1, num_global_key_value_heads=None, hidden_size_per_layer_input=16, num_kv_shared_layers=3,
                use_double_wide_mlp=True, layer_types=[S, S, G, S, S, G], num_hidden_layers=6),
    "wide-heads": dict(head_dim=256, global_head_dim=512, num_attention_heads=2, num_key_value_heads=1, sliding_window=64, hidden_size=32, layer_types=[S, G], num_hidden_layers=2),
    "long": dict(sliding_window=1024, num_attention_heads=16, num_key_value_heads=8, layer_types=[S, S, G], num_hidden_layers=3),
}
LENGTHS = {"long": [1023, 1024, 1025, 2049, 8193]}
SEED = 20261129


def randomise(model, generator):
    for name, p in model.named_parameters():
        n = torch.randn(p.shape, generator=generator)
        if p.dim() >= 2:
            fan_in = p.shape[-1]
            scale = 1.0 if "embed" in name else 1.5
            value = n * scale / fan_in**0.5
        elif "scal" in name:
            value = 0.8 + 0.2 * torch.rand(p.shape, generator=generator)
        else:
            value = 1.0 + 0.2 * n
        p.data.copy_(value.to(torch.bfloat16).float())
    for name, b in model.named_buffers():
        if "scalar" in name:
            b.copy_((0.8 + 0.2 * torch.rand(b.shape, generator=generator)).to(torch.bfloat16).float())


def make(name, out):
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED + sum(map(ord, name)))
    config = configuration_gemma4.Gemma4TextConfig(**{**BASE, **MODELS[name]})
    config._attn_implementation = "eager"
    config.dtype = "bfloat16"
    model = modeling_gemma4.Gemma4ForCausalLM(config).float().eval()
    randomise(model, generator)
    model.tie_weights()
    prompts, greedy, tensors = {}, {}, {}
    with torch.no_grad():
        for length in LENGTHS.get(name, [1, 7, 40, 150]):
            ids = [2] + torch.randint(3, config.vocab_size, (length - 1,), generator=generator).tolist()
            prompts[str(length)] = ids
            result = model(torch.tensor([ids]), use_cache=True, output_hidden_states=length == 40)
            rows = result.logits[0] if length <= 40 else result.logits[0, -8:]
            tensors[f"logits.{length}"] = rows.float().contiguous()
            if length == 40:
                for i, h in enumerate(result.hidden_states):
                    tensors[f"hidden.40.{i}"] = h[0].float().contiguous()
            more, cache, last = [], result.past_key_values, result.logits[0, -1]
            for _ in range(32 if length < 2000 else 16):
                token = int(last.argmax())
                more.append(token)
                step = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
                last = step.logits[0, -1]
            greedy[str(length)] = more
            gaps = torch.topk(rows, 2, dim=-1).values
            print(name, length, "std", round(float(rows.std()), 3), "smallest top-2 gap", round(float((gaps[:, 0] - gaps[:, 1]).min()), 4), "distinct greedy", len(set(more)), flush=True)
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    state = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(state, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    save_file(tensors, os.path.join(folder, "reference.safetensors"))
    saved = config.to_dict()
    saved["architectures"] = ["Gemma4ForCausalLM"]
    json.dump(saved, open(os.path.join(folder, "config.json"), "w"), indent=1, default=str)
    json.dump({"transformers": transformers.__version__, "prompts": prompts, "greedy": greedy}, open(os.path.join(folder, "reference.json"), "w"))


for model_name in MODELS:
    make(model_name, sys.argv[1])
