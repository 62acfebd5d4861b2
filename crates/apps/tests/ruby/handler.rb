# frozen_string_literal: true

# An application without Rack.
module Handler
  def self.call(_)
    [200, {}, ["handled, #{defined?(Rack) ? "with" : "without"} Rack"]]
  end
end

nil
