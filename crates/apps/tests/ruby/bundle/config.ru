# frozen_string_literal: true

# Installed gems that are not in the bundle are not available.
found = begin
  require "sinatra/base"
  "found"
rescue LoadError
  "not found"
end

run ->(_) { [200, {}, ["#{defined?(Bundler) ? "bundled" : "loose"}, sinatra #{found}"]] }
