use std::sync::atomic::AtomicBool;
use bench::{load, plan::*, request::*, url::Url};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let ask = Ask::get(Url::parse(&args[1]).unwrap());
    let manner = Manner { keep_alive: true, ..Manner::default() };
    let mut plan = Plan::new(&[ask], &manner, &Reach::default()).unwrap();
    plan.connections = args[2].parse().unwrap();
    plan.duration = Some(std::time::Duration::from_secs_f64(args[3].parse().unwrap()));
    plan.threads = args[4].parse().unwrap();
    plan.warm_up = std::time::Duration::ZERO;
    if let Some(r) = args.get(5) { plan.pace = Pace::Open{rate: r.parse().unwrap(), arrivals: Arrivals::Constant}; }
    let m = load::run(&plan, &AtomicBool::new(false), &mut ()).unwrap();
    let l = &m.tally.latency;
    println!("{:.0} req/s  gen cpu {:.2} us/req  busy {:.2} p50 {} p99 {} p99.9 {} max {} late99 {} errors {} {:?} {:?} points {} conns {} secs {}", m.rate(), m.generator_cpu_s*1e6/m.tally.responses as f64, m.busiest_thread,
      l.percentile(50.), l.percentile(99.), l.percentile(99.9), l.max(), m.tally.lateness.percentile(99.0), m.tally.errors.total(), m.tally.statuses(), m.facts, m.points.len(), m.tally.connections, m.seconds);
}
