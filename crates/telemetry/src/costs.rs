//! Selection of the request costs to measure: all of them for clients that receive `Server-Timing`, for logs
//! that contain them and for sampled traces; and the CPU time of every 64th request, from which metrics are
//! estimated.

use std::cell::Cell;
use std::rc::Rc;

use engine::clients::proxies::peer_set;
use http::{LogVariable, TemplatePart, Variable};
use logging::{AccessLog, RequestLog, RequestLogs};
use net::{CpuMeter, Exchange, MeasuredCosts, PeerSet};
use shapes::network::TrustedSource;

/// Interval at which requests are measured for metrics.
const SAMPLE_EVERY: u32 = 64;

/// Measurements that a configuration requires.
#[derive(Default)]
pub struct CostPlan {
    /// Clients that receive `Server-Timing`.
    timing_clients: Option<PeerSet>,
    /// Costs that logs contain for every request.
    logged: MeasuredCosts,
}

impl CostPlan {
    /// Determines the costs that `server_timing` and the access logs require.
    pub fn new(server_timing: &[TrustedSource], logs: &RequestLogs) -> CostPlan {
        let shown_to = (!server_timing.is_empty()).then(|| peer_set(server_timing));
        CostPlan { timing_clients: shown_to, logged: logs.iter().map(logged).max().unwrap_or_default() }
    }

    /// Decides what to measure for a request; `request_count` counts the core's requests. `None` if nothing is
    /// measured.
    pub fn begin(&self, exchange: &mut Exchange<'_>, request_count: &Cell<u32>) -> Option<Rc<CpuMeter>> {
        let mut measured = self.logged;
        let request = exchange.request();
        let is_traced = request.ids().trace.is_some_and(|trace| trace.is_sampled);
        let is_shown = self.timing_clients.as_ref().is_some_and(|to| to.contains(request.client().address));
        if is_shown {
            exchange.add_server_timing();
        }
        if is_traced || is_shown {
            measured = MeasuredCosts::All;
        }
        request_count.set((request_count.get() + 1) % SAMPLE_EVERY);
        let weight = match (self.logged, request_count.get()) {
            (MeasuredCosts::Cpu | MeasuredCosts::All, _) => 1,
            (MeasuredCosts::None, 0) => SAMPLE_EVERY,
            (MeasuredCosts::None, _) => 0,
        };
        if weight > 0 {
            measured = measured.max(MeasuredCosts::Cpu);
        }
        if measured == MeasuredCosts::None {
            return None;
        }
        let meter = Rc::new(CpuMeter::default());
        let notes = exchange.notes();
        (notes.measured, notes.cpu_weight, notes.cpu_meter) = (measured, weight, Some(meter.clone()));
        Some(meter)
    }
}

/// Costs that a log contains.
fn logged(log: &RequestLog) -> MeasuredCosts {
    let of = |variable: &Variable| match variable {
        Variable::Log(LogVariable::WorkerMemoryKib) => MeasuredCosts::All,
        Variable::Log(LogVariable::ServerCpuMs | LogVariable::WorkerCpuMs) => MeasuredCosts::Cpu,
        _ => MeasuredCosts::None,
    };
    let most = match &log.access {
        AccessLog::Json | AccessLog::Logfmt => log.fields.iter().map(|(_, variable)| of(variable)).max(),
        AccessLog::Template(template) => {
            let parts = template.parts().iter();
            let variables = parts.filter_map(|part| match part {
                TemplatePart::Variable(variable) => Some(of(variable)),
                TemplatePart::Text(_) => None,
            });
            variables.max()
        }
        AccessLog::Off | AccessLog::Combined | AccessLog::Ecs | AccessLog::Console { .. } => None,
    };
    most.unwrap_or_default()
}
