//! A checkpoint's texts: tokenizer, its configuration, and chat template.

use serde_json::{Value, json};
use tensorfold::text::{ChatPrompt, ReplyOptions, TextModel};

use super::Scratch;

/// Longest text that is encoded: more of it finds no more.
const TEXT_LIMIT: usize = 2000;

/// `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` with a
/// zero byte between; empty ones, and those that do not follow, are absent.
pub fn tokenizer(scratch: &Scratch, input: &[u8]) -> Result<(), String> {
    let names = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];
    let parts = input.splitn(names.len(), |&byte| byte == 0);
    let files: Vec<(&str, &[u8])> = names.into_iter().zip(parts).filter(|file| !file.1.is_empty()).collect();
    let model = TextModel::load(scratch.fill(&files)).map_err(|error| error.to_string())?;
    model.effort_levels();
    model.thinking_close();
    let mut texts = vec!["Hello, world! a ab\u{e4}\u{1f642}\u{0301} 12 <|im_end|>\n".to_owned()];
    texts.extend(model.has_template().then(|| conversations(&model)).into_iter().flatten());
    for text in &mut texts {
        text.truncate(text.floor_char_boundary(TEXT_LIMIT));
        if let Ok(ids) = model.encode(text, true) {
            assert!(model.most_bytes_of(ids.len() as u32) >= ids.len());
            reply(&model, &ids);
        }
    }
    reply(&model, &[0, 7, 2, u32::MAX, 7, 7]);
    Ok(())
}

/// Renders conversations of every kind that the server makes.
fn conversations(model: &TextModel) -> Vec<String> {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": [1, null], "y": "z"}}});
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})];
    let plain = [json!({"role": "user", "content": "Hi <b>"})];
    let long = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "\u{1f642} one"}),
        json!({"role": "assistant", "content": "<think>\nno\n</think>\n\nyes", "tool_calls": [call]}),
        json!({"role": "tool", "content": "{}", "tool_call_id": "c"}),
    ];
    let prompts: [ChatPrompt<'_>; 3] = [
        ChatPrompt::new(&plain),
        ChatPrompt { tools: &tools, enable_thinking: Some(false), ..ChatPrompt::new(&long) },
        ChatPrompt {
            reasoning_effort: Some("low"),
            add_generation_prompt: false,
            variables: [("documents_note".to_owned(), Value::Null)].into_iter().collect(),
            ..ChatPrompt::new(&long)
        },
    ];
    prompts.iter().filter_map(|prompt| model.render(prompt).ok()).map(|rendered| rendered.text).collect()
}

/// Streams ids as a reply and as plain text; pieces must join to the whole.
fn reply(model: &TextModel, ids: &[u32]) {
    let mut stream = model.detokenizer();
    let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
    text.push_str(&stream.finish());
    assert_eq!(text, model.decode(ids));
    let mut stream = model.reply(ReplyOptions::default());
    let mut pieces = Vec::new();
    ids.iter().for_each(|&id| stream.push(id, &mut pieces));
    stream.finish(&mut pieces);
}
