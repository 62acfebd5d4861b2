# frozen_string_literal: true

->(_) { [200, {}, ["the last value"]] }
