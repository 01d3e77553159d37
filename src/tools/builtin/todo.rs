//! `todo_read`, `todo_write`: a list that lives with the run.

use std::sync::PoisonError;

use serde_json::{Map, Value, json};

use super::{Answer, Work};
use crate::domain::CallError;

pub(super) fn read(_: &Map<String, Value>, work: &Work<'_>) -> Result<Answer, CallError> {
    let todos = work.around.todos.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(answer(&todos))
}

pub(super) fn write(arguments: &Map<String, Value>, work: &Work<'_>) -> Result<Answer, CallError> {
    let given = arguments.get("todos").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut todos = work.around.todos.lock().unwrap_or_else(PoisonError::into_inner);
    *todos = given;
    Ok(answer(&todos))
}

fn answer(todos: &[Value]) -> Answer {
    let is_open = |todo: &&Value| {
        matches!(todo.get("status").and_then(Value::as_str), Some("pending" | "in_progress"))
    };
    let open = todos.iter().filter(is_open).count();
    Answer::of(json!({"todos": todos, "open": open}).to_string())
}
