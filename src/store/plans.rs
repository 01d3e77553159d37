//! Change plans and MCP pins in the ledger.
//!
//! A plan is claimed in one statement before its first step, so that no step is executed twice. To
//! apply a plan, the caller claims it as `failed` and stores its real state afterwards. So a plan
//! whose execution was cut off stays `failed`: we cannot tell which steps took effect.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension as _, Row, params};

use super::db::DbError;
use super::ledger::{Ledger, LedgerReader};
use super::lost::Lost;
use crate::domain::{Plan, PlanState};

/// A plan that cannot be read, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadablePlan {
    pub plan_id: String,
    pub why: String,
}

/// The plans of a ledger.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plans {
    /// Newest first.
    pub plans: Vec<Plan>,
    pub unreadable: Vec<UnreadablePlan>,
}

impl Ledger {
    /// Stores the new state of a plan.
    ///
    /// *Errors*: [`DbError`].
    pub async fn keep_plan(&self, plan: Plan) -> Result<(), DbError> {
        self.write(move |transaction| {
            let json = to_json(&plan)?;
            let created = plan.created_at.timestamp_millis();
            transaction
                .execute(
                    "INSERT OR REPLACE INTO plans VALUES (?1, ?2, ?3, ?4)",
                    params![plan.plan_id, created, plan.state.as_str(), json],
                )
                .map(drop)
        })
        .await
    }

    /// Stores the plan of a run that ends. A resumed run may have stored it before, and a person may
    /// have decided about it since; the plan then stays as it is.
    ///
    /// *Errors*: [`DbError`].
    pub async fn add_plan(&self, plan: Plan) -> Result<(), DbError> {
        self.write(move |transaction| {
            let json = to_json(&plan)?;
            let created = plan.created_at.timestamp_millis();
            transaction
                .execute(
                    "INSERT INTO plans VALUES (?1, ?2, ?3, ?4) ON CONFLICT (plan_id) DO NOTHING",
                    params![plan.plan_id, created, plan.state.as_str(), json],
                )
                .map(drop)
        })
        .await
    }

    /// Claims a waiting plan: sets its state to `to`, which stays until [`Self::keep_plan`] stores
    /// another state. Returns the claimed plan; `None` if no plan with this id was waiting.
    ///
    /// *Errors*: [`DbError`].
    pub async fn claim_plan(
        &self,
        plan_id: String,
        to: PlanState,
    ) -> Result<Option<Plan>, DbError> {
        self.write(move |transaction| {
            let changed = transaction.execute(
                "UPDATE plans SET state = ?2 WHERE plan_id = ?1 AND state = 'waiting'",
                params![plan_id, to.as_str()],
            )?;
            if changed == 0 {
                return Ok(None);
            }
            let mut query =
                transaction.prepare("SELECT state, plan FROM plans WHERE plan_id = ?1")?;
            query.query_row([plan_id], plan).optional()
        })
        .await
    }
}

impl Ledger {
    /// Sets plans to `failed` that wait although their records say that they were tried, because the
    /// ledger is older. Returns their number.
    ///
    /// *Errors*: [`DbError`]; nothing is then changed.
    pub async fn end_tried_plans(&self, plan_ids: Vec<String>) -> Result<usize, DbError> {
        self.write(move |transaction| {
            let mut update = transaction.prepare_cached(
                "UPDATE plans SET state = 'failed' WHERE plan_id = ?1 AND state = 'waiting'",
            )?;
            let mut count = 0;
            for plan_id in &plan_ids {
                count += update.execute([plan_id])?;
            }
            Ok(count)
        })
        .await
    }

    /// Stores the accepted tools of an MCP server: digests by name.
    ///
    /// *Errors*: [`DbError`].
    pub async fn keep_mcp_pins(
        &self,
        server: String,
        pins: BTreeMap<String, String>,
    ) -> Result<(), DbError> {
        self.write(move |transaction| {
            let json = to_json(&pins)?;
            transaction
                .execute("INSERT OR REPLACE INTO mcp_pins VALUES (?1, ?2)", params![server, json])
                .map(drop)
        })
        .await
    }
}

fn to_json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

impl LedgerReader<'_> {
    /// Returns the accepted tools of an MCP server, digests by name; `None` if dutyd has never used the
    /// server. After a loss of the pins, no tool of it is accepted.
    ///
    /// *Errors*: SQLite's.
    pub fn mcp_pins(&self, server: &str) -> rusqlite::Result<Option<BTreeMap<String, String>>> {
        // Pins whose server cannot be told may be this server's, which then has no first contact.
        let mut query = self.connection().prepare(
            "SELECT pins, server FROM mcp_pins WHERE server = ?1 OR typeof(server) <> 'text'
             ORDER BY server = ?1 DESC LIMIT 1",
        )?;
        let found = query.query_row([server], |row| {
            let _: String = row.get(1)?;
            digests(row)
        });
        let found = found.optional()?;
        if found.is_none() && Lost::McpPins.is_marked(self.connection())? {
            return Ok(Some(BTreeMap::new()));
        }
        Ok(found)
    }

    /// Returns all plans. A plan that cannot be read does not hide the others.
    ///
    /// *Errors*: SQLite's.
    pub fn plans(&self) -> rusqlite::Result<Plans> {
        let mut query = self
            .connection()
            .prepare("SELECT state, plan, plan_id FROM plans ORDER BY created_at DESC")?;
        let mut rows = query.query([])?;
        let mut found = Plans::default();
        while let Some(row) = rows.next()? {
            match plan(row) {
                Ok(plan) => found.plans.push(plan),
                Err(error) => {
                    let plan_id = row.get(2).unwrap_or_else(|_| "?".to_owned());
                    found.unreadable.push(UnreadablePlan { plan_id, why: error.to_string() });
                }
            }
        }
        Ok(found)
    }

    /// Returns the plan with this id; `None` if it does not exist.
    ///
    /// *Errors*: SQLite's.
    pub fn plan(&self, plan_id: &str) -> rusqlite::Result<Option<Plan>> {
        let mut query =
            self.connection().prepare("SELECT state, plan FROM plans WHERE plan_id = ?1")?;
        query.query_row([plan_id], plan).optional()
    }
}

/// Reads the digests of accepted tools, by name.
pub(super) fn digests(row: &Row<'_>) -> rusqlite::Result<BTreeMap<String, String>> {
    serde_json::from_str(row.get_ref(0)?.as_str()?).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })
}

pub(super) fn plan(row: &Row<'_>) -> rusqlite::Result<Plan> {
    let unreadable = |error| {
        rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, Box::new(error))
    };
    let state: String = row.get(0)?;
    let mut plan: Plan = serde_json::from_str(row.get_ref(1)?.as_str()?).map_err(unreadable)?;
    // Claiming a plan changes only the column, so the column takes precedence over the JSON.
    plan.state = serde_json::from_value(state.into()).map_err(unreadable)?;
    Ok(plan)
}
