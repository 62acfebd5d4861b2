# frozen_string_literal: true

Komainu.on_load { warn "and so did config.ru" }

run ->(env) { [200, {}, [env["rack.input"].respond_to?(:rewind).to_s, env["rack.input"].read]] }
