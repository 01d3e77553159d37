//! `todo_read`, `todo_write`: a list that lives as long as the run. `skill`: the text of a skill of
//! the job.

use std::sync::PoisonError;

use serde_json::{Map, Value, json};

use super::{Answer, Work};
use crate::domain::{CallError, ErrorKind};

pub(super) fn read(_: &Map<String, Value>, work: &Work<'_>) -> Result<Answer, CallError> {
    let todos = work.ctx.todos.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(answer(&todos))
}

pub(super) fn write(arguments: &Map<String, Value>, work: &Work<'_>) -> Result<Answer, CallError> {
    let given = arguments.get("todos").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut todos = work.ctx.todos.lock().unwrap_or_else(PoisonError::into_inner);
    *todos = given;
    Ok(answer(&todos))
}

fn answer(todos: &[Value]) -> Answer {
    let is_open = |todo: &&Value| {
        matches!(todo.get("status").and_then(Value::as_str), Some("pending" | "in_progress"))
    };
    let open = todos.iter().filter(is_open).count();
    let mut answer = Answer::of(json!({"todos": todos, "open": open}).to_string());
    answer.details.insert("todos".to_owned(), json!(todos));
    answer.details.insert("incomplete_count".to_owned(), json!(open));
    answer
}

pub(super) fn skill(arguments: &Map<String, Value>, work: &Work<'_>) -> Result<Answer, CallError> {
    let name = arguments.get("name").and_then(Value::as_str).unwrap_or_default();
    let skills = &work.ctx.skills;
    match skills.iter().find(|skill| skill.directory == name) {
        Some(skill) => Ok(Answer::of(skill.body.as_str())),
        None => {
            let known: Vec<&str> = skills.iter().map(|skill| skill.directory.as_str()).collect();
            let message = format!("Unknown skill. Available skills: {}.", known.join(", "));
            Err(CallError::new(ErrorKind::NotFound, message))
        }
    }
}
