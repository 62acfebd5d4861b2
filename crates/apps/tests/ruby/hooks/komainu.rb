# frozen_string_literal: true

Komainu.rewindable_input = false
Komainu.on_load { warn "loaded in #{Process.pid}" }
Komainu.before_fork { warn "forking in #{Process.pid}" }
Komainu.after_fork { warn "forked: #{Process.pid}" }
Komainu.on_exit { warn "leaving: #{Process.pid}" }
