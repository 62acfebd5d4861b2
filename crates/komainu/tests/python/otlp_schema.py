"""Judges documents of OTLP's JSON encoding by the schema of the protocol: `PATH JSON` on each line.

Unknown fields, values of another type and enum names that do not exist are errors of Google's parser. Ids, which stand as hexadecimal digits
there and as base64 in JSON of Protocol Buffers, are judged and translated here.
"""
import base64
import json
import re
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {
    "/v1/logs": ExportLogsServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
}
IDS = {"traceId": 32, "spanId": 16, "parentSpanId": 16}


def translated(value):
    if isinstance(value, list):
        return [translated(item) for item in value]
    if not isinstance(value, dict):
        return value
    out = {}
    for key, inner in value.items():
        if key in IDS:
            assert re.fullmatch("[0-9a-f]{%d}" % IDS[key], inner) and set(inner) != {"0"}, (key, inner)
            out[key] = base64.b64encode(bytes.fromhex(inner)).decode()
        else:
            out[key] = translated(inner)
    return out


def judge_point(point, cumulative):
    assert point.time_unix_nano > 0, point
    if cumulative:
        assert 0 < point.start_time_unix_nano <= point.time_unix_nano, point
    keys = [attribute.key for attribute in point.attributes]
    assert len(keys) == len(set(keys)), keys


def judge_metrics(message):
    for metric in message.resource_metrics[0].scope_metrics[0].metrics:
        kind = metric.WhichOneof("data")
        data = getattr(metric, kind)
        assert metric.name and metric.unit and data.data_points, metric
        if kind != "gauge":
            assert data.aggregation_temporality == 2, metric
        for point in data.data_points:
            judge_point(point, kind != "gauge")
            if kind == "histogram":
                assert len(point.bucket_counts) == len(point.explicit_bounds) + 1, metric
                assert sum(point.bucket_counts) == point.count, metric
            if kind == "exponential_histogram":
                assert sum(point.positive.bucket_counts) + point.zero_count == point.count, metric
    return len(message.resource_metrics[0].scope_metrics[0].metrics)


def judge_logs(message):
    records = message.resource_logs[0].scope_logs[0].log_records
    for record in records:
        assert record.time_unix_nano > 0 and record.severity_number > 0 and record.body.string_value, record
    return len(records)


def judge_traces(message):
    return len(message.resource_spans[0].scope_spans[0].spans)


count = 0
for line in sys.stdin:
    path, document = line.split(" ", 1)
    message = json_format.Parse(json.dumps(translated(json.loads(document))), KINDS[path]())
    judge = {"/v1/logs": judge_logs, "/v1/metrics": judge_metrics, "/v1/traces": judge_traces}[path]
    count += judge(message)
print(count)
