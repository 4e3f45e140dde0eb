// A monitoring mixin: the rules and dashboards as they are shipped, for those who deploy by mixins.
local groups = std.flatMap(
  function(rules) rules.spec.groups,
  std.parseYaml(importstr 'deploy/kubernetes/monitoring/rules.yaml')  // alerts/*.yaml without aliases, which not every jsonnet reads
);
{
  prometheusAlerts+:: { groups+: [group for group in groups if std.startsWith(group.name, 'specdec-alerts')] },
  prometheusRules+:: { groups+: [group for group in groups if !std.startsWith(group.name, 'specdec-alerts')] },
  grafanaDashboards+:: {
    'specdec-fleet.json': import 'dashboards/specdec-fleet.json',
    'specdec-operator.json': import 'dashboards/specdec-operator.json',
  },
}
